// Checked against: the grammar of RFC 8259 by hand-written texts, nlohmann's own parser for what must be accepted, and
// every limit at its bound and one past it.
#include "kernels/base/json.h"

#include <doctest/doctest.h>

#include <chrono>
#include <nlohmann/json.hpp>
#include <string>

namespace {

std::string refusal(std::string_view text, const ft::JsonLimits& limits = ft::kFileJsonLimits) {
  std::string sorted_message;
  std::string ordered_message;
  try {
    ft::parse_json(text, "input", limits);
  } catch (const ft::Error& error) {
    sorted_message = error.what();
  }
  try {
    ft::parse_ordered_json(text, "input", limits);
  } catch (const ft::Error& error) {
    ordered_message = error.what();
  }
  CHECK(sorted_message == ordered_message);  // one rule for both value types
  return sorted_message;
}

bool contains(const std::string& text, std::string_view part) { return text.find(part) != std::string::npos; }

std::string nested(size_t levels) { return std::string(levels, '[') + std::string(levels, ']'); }

std::string object_with_keys(size_t keys) {
  std::string text = "{";
  for (size_t i = 0; i < keys; ++i) text += (i == 0 ? "\"k" : ",\"k") + std::to_string(i) + "\":1";
  return text + "}";
}

}  // namespace

TEST_CASE("accepted texts give nlohmann's values, in both value types") {
  const char* texts[] = {"null",
                         "true",
                         "0",
                         "-1",
                         "18446744073709551615",
                         "-9223372036854775808",
                         "1e300",
                         "0.1",
                         "\"\"",
                         "\"\\u00e9\\ud83d\\ude00\\u0000\"",
                         "\"\xc3\xa9\xf0\x9f\x98\x80\"",
                         "[]",
                         "{}",
                         " \t\r\n[1 , [ ], {\"a\" : {}}] ",
                         R"({"z":{"y":[1,2,{"x":null}]},"a":"b","m":[[],[[]]],"c":-1.5e-7})"};
  for (const char* text : texts) {
    CAPTURE(text);
    CHECK(ft::parse_json(text, "input") == nlohmann::json::parse(text));
    CHECK(ft::parse_ordered_json(text, "input") == nlohmann::ordered_json::parse(text));
    CHECK(ft::parse_ordered_json(text, "input").dump() == nlohmann::ordered_json::parse(text).dump());
  }
}

TEST_CASE("keys keep their order in OrderedJson and are sorted in Json") {
  CHECK(ft::parse_ordered_json(R"({"b":1,"a":2})", "input").dump() == R"({"b":1,"a":2})");
  CHECK(ft::parse_json(R"({"b":1,"a":2})", "input").dump() == R"({"a":2,"b":1})");
}

TEST_CASE("texts outside of the grammar are refused") {
  for (const char* text :
       {"",      " ",   "[",     "[1",         "[1,]",        "{",      "{\"a\"}", "{\"a\":}", "{\"a\":1,}",
        "{a:1}", "nul", "NaN",   "[Infinity]", "[-Infinity]", "01",     "1.",      ".5",       "+1",
        "'a'",   "\"a", "[1] x", "1 2",        "// c\n1",     "\"\t\"", "\"\\x\"", "1e999"}) {
    CAPTURE(text);
    CHECK(contains(refusal(text), "not acceptable as JSON at byte "));
  }
}

TEST_CASE("a number beyond 64-bit floating point is shown, with where it stands and what is allowed") {
  for (const char* number : {"1e999", "-1e309", "123456789e400"}) {
    const std::string message = refusal("{\"a\": [1, " + std::string(number) + "]}");
    CAPTURE(message);
    CHECK(contains(message, "at byte "));
    CHECK(contains(message, "'" + std::string(number) + "'"));
    CHECK(contains(message, "allowed: numbers of up to 1.7e308"));
  }
}

TEST_CASE("bad UTF-8 is refused, whichever way it is bad") {
  for (const char* text : {"\"\xff\"", "\"\x80\"", "\"\xc3\"", "\"\xc0\xaf\"", "\"\xe0\x80\xaf\"", "\"\xed\xa0\x80\"",
                           "\"\xf4\x90\x80\x80\"", "\"\xf0\x9f\x98\"", "{\"\xff\":1}", "\"\\ud800\"", "\"\\udc00x\""}) {
    CAPTURE(text);
    const std::string message = refusal(text);
    CHECK_FALSE(message.empty());
    for (const char c : message) CHECK(static_cast<unsigned char>(c) < 0x80);  // fit to be put into a JSON reply
  }
}

TEST_CASE("a NUL byte does not end the text early") {
  CHECK(contains(refusal(std::string_view("[1]\0[2]", 7)), "byte 3 of input: NUL byte"));
  CHECK(contains(refusal(std::string_view("\0", 1)), "byte 0 of input: NUL byte"));
}

TEST_CASE("duplicate keys are refused, in small objects and large ones") {
  CHECK(contains(refusal(R"({"a":1,"b":2,"a":3})"), "duplicate key \"a\""));
  CHECK(refusal(R"({"a":{"a":1},"b":[{"a":2},{"a":3}]})").empty());  // other objects' keys do not count
  std::string large = object_with_keys(100);
  large.insert(large.size() - 1, ",\"k50\":1");
  CHECK(contains(refusal(large), "duplicate key \"k50\""));
  large = object_with_keys(17);  // found in the set of hashes that replaces the linear search
  large.insert(large.size() - 1, ",\"k0\":1");
  CHECK(contains(refusal(large), "duplicate key \"k0\""));
}

TEST_CASE("limits hold at their bound and one past it") {
  ft::JsonLimits limits;
  limits.max_bytes = 10;
  CHECK(refusal("\"12345678\"", limits).empty());
  CHECK(contains(refusal("\"123456789\"", limits), "too long: 11 bytes; allowed: at most 10 bytes"));

  limits = {};
  limits.max_depth = 5;
  CHECK(refusal(nested(5), limits).empty());
  CHECK(contains(refusal(nested(6), limits), "byte 6 of input: nested too deeply; allowed: at most 5 levels"));
  CHECK(refusal(R"({"a":{"a":{"a":[{}]}}})", limits).empty());
  CHECK(contains(refusal(R"({"a":{"a":{"a":[[{}]]}}})", limits), "nested too deeply"));

  limits = {};
  limits.max_values = 4;
  CHECK(refusal("[1,2,3]", limits).empty());
  CHECK(contains(refusal("[1,2,3,4]", limits), "too many values; allowed: at most 4 values and keys"));
  CHECK(refusal(R"({"a":1})", limits).empty());
  CHECK(contains(refusal(R"({"a":1,"b":2})", limits), "too many values"));

  limits = {};
  limits.max_keys_per_object = 3;
  CHECK(refusal(object_with_keys(3), limits).empty());
  CHECK(contains(refusal(object_with_keys(4), limits), "too many keys in one object; allowed: at most 3"));
}

TEST_CASE("the default limits are the ones in use") {
  CHECK(refusal(nested(ft::kFileJsonLimits.max_depth)).empty());
  CHECK(contains(refusal(nested(ft::kFileJsonLimits.max_depth + 1)), "nested too deeply"));
  const std::string request = object_with_keys(ft::kRequestJsonLimits.max_keys_per_object + 1);
  CHECK_THROWS_AS(ft::parse_ordered_json(request, "request body"), ft::Error);
}

TEST_CASE("absurd depth and size end at the limit, not at the end of the text") {
  const std::string open(ft::kFileJsonLimits.max_bytes, '[');
  CHECK(contains(refusal(open), "byte 65 of input: nested too deeply"));
  std::string objects;
  for (int i = 0; i < 1'000'000; ++i) objects += "{\"a\":";
  CHECK(contains(refusal(objects), "nested too deeply"));
  // Without a limit on depth, the parser, the builder and the value's destructor must not use the call stack.
  ft::JsonLimits deep;
  deep.max_depth = 10'000'000;
  CHECK(refusal(nested(1'000'000), deep).empty());
}

TEST_CASE("an ordered object with many keys is read in linear time") {
  const auto seconds = [](size_t keys) {
    const std::string text = object_with_keys(keys);
    const auto begin = std::chrono::steady_clock::now();
    CHECK(ft::parse_ordered_json(text, "input", ft::kFileJsonLimits).size() == keys);
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  };
  // A linear look-up per key would take 200'000^2 / 2 comparisons: minutes.
  CHECK(seconds(200'000) < 20);
}

TEST_CASE("the kind of the error is the caller's, and the source is named") {
  try {
    ft::parse_ordered_json("[", "request body", ft::kRequestJsonLimits, ft::ErrorKind::kRequest);
    FAIL("not refused");
  } catch (const ft::Error& error) {
    CHECK(error.kind() == ft::ErrorKind::kRequest);
    CHECK(contains(error.what(), "request body"));
  }
}
