// Checked against: messages written out by hand.
#include "kernels/base/error.h"

#include <doctest/doctest.h>

#include <set>
#include <string>

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

// U+`code` in UTF-8.
std::string utf8(int code) {
  if (code < 0x80) return {static_cast<char>(code)};
  if (code < 0x800) return {static_cast<char>(0xc0 | code >> 6), static_cast<char>(0x80 | (code & 0x3f))};
  return {static_cast<char>(0xe0 | code >> 12), static_cast<char>(0x80 | (code >> 6 & 0x3f)),
          static_cast<char>(0x80 | (code & 0x3f))};
}

TEST_CASE("what turns the direction of writing or ends a line is shown, of every code point of three bytes") {
  const std::set<int> marks = {0x61c,  0x200e, 0x200f, 0x2028, 0x2029, 0x202a, 0x202b,
                               0x202c, 0x202d, 0x202e, 0x2066, 0x2067, 0x2068, 0x2069};
  for (int code = 0; code < 0x10000; ++code) {
    const bool control = code < 0x20 || (code >= 0x7f && code < 0xa0) || marks.contains(code);
    CAPTURE(code);
    const std::string text = "a" + utf8(code) + "b", shown = ft::printable(text);
    const bool escaped = shown.find("\\x") == 1 && shown.size() == 2 + 4 * (text.size() - 2);
    if (code != '\\') CHECK((control ? escaped : shown == text));
  }
  CHECK(ft::printable("eval\xe2\x80\xaexyz") == "eval\\xe2\\x80\\xaexyz");
  CHECK(ft::printable("cut \xe2\x80") == "cut \xe2\x80");
}

TEST_CASE("the root of a JSON file reads as a sentence") {
  CHECK(ft::format_error({"value refused", "array", "an object", "", "$"}) ==
        "value refused: the whole file is 'array'; allowed: an object");
  CHECK(ft::format_error({"value refused", "array", "", "", "a.json: $"}) ==
        "value refused: a.json: the whole file is 'array'");
  CHECK(ft::format_error({"value refused", "1", "", "", "a.json: $.b"}) == "value refused: a.json: $.b is '1'");
}
