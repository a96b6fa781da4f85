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

TEST_CASE("control characters are shown, those of Unicode too, and nothing else is touched") {
  std::string all;
  for (int byte = 0; byte < 0x80; ++byte) all += static_cast<char>(byte);
  const std::string shown = ft::printable(all);
  for (const char c : shown) CHECK((c >= 0x20 && c < 0x7f));
  CHECK(shown.starts_with("\\x00\\x01"));
  CHECK(shown.ends_with("~\\x7f"));
  CHECK(ft::printable("a\x1b[2Jb\r\n") == "a\\x1b[2Jb\\x0d\\x0a");
  CHECK(ft::printable("a\tb\nc", "\n") == "a\\x09b\nc");
  CHECK(ft::printable("\xc2\x9b"
                      "2J") == "\\xc2\\x9b2J");  // CSI as one character
  CHECK(ft::printable("\xc2\x80\xc2\x9f\xc2\xa0") == "\\xc2\\x80\\xc2\\x9f\xc2\xa0");
  CHECK(ft::printable("gr\xc3\xbc\xc3\x9f \xe2\x82\xac \xf0\x9f\x98\x80 \xc2") ==
        "gr\xc3\xbc\xc3\x9f \xe2\x82\xac \xf0\x9f\x98\x80 \xc2");
  CHECK(ft::printable("").empty());
}

TEST_CASE("the root of a JSON file reads as a sentence") {
  CHECK(ft::format_error({"value refused", "array", "an object", "", "$"}) ==
        "value refused: the whole file is 'array'; allowed: an object");
  CHECK(ft::format_error({"value refused", "array", "", "", "a.json: $"}) ==
        "value refused: a.json: the whole file is 'array'");
  CHECK(ft::format_error({"value refused", "1", "", "", "a.json: $.b"}) == "value refused: a.json: $.b is '1'");
}
