// Checked against: messages written out by hand.
#include "kernels/base/error.h"

#include <doctest/doctest.h>

TEST_CASE("an error message says what, where, the value, what is allowed and what to do") {
  CHECK(ft::format_error({"option refused", "0", "1 to 64", "give a positive number", "--threads"}) ==
        "option refused: --threads is '0'; allowed: 1 to 64; give a positive number");
  CHECK(ft::format_error({"no model", "", "", "", ""}) == "no model");
}

TEST_CASE("control characters in a value cannot forge a second line") {
  CHECK(ft::format_error({"bad name", "a\nb\x1b", "", "", ""}) == "bad name: 'a\\x0ab\\x1b'");
}

TEST_CASE("the root of a JSON file reads as a sentence") {
  CHECK(ft::format_error({"value refused", "array", "an object", "", "$"}) ==
        "value refused: the whole file is 'array'; allowed: an object");
  CHECK(ft::format_error({"value refused", "array", "", "", "a.json: $"}) ==
        "value refused: a.json: the whole file is 'array'");
  CHECK(ft::format_error({"value refused", "1", "", "", "a.json: $.b"}) == "value refused: a.json: $.b is '1'");
}
