// Checked against: a search in the whole text, for random texts cut at random places.
#include <doctest/doctest.h>

#include "engine/text/tokenizer.h"
#include "kernels/base/error.h"
#include "kernels/base/random.h"

namespace {

struct Outcome {
  std::string text;
  bool stopped = false;
};

// The first end of a stop string; of several that end there, the longest.
Outcome expected_of(const std::string& text, const std::vector<std::string>& stops) {
  for (size_t end = 1; end <= text.size(); ++end) {
    size_t longest = 0;
    for (const std::string& stop : stops) {
      if (std::string_view(text).substr(0, end).ends_with(stop)) longest = std::max(longest, stop.size());
    }
    if (longest > 0) return {text.substr(0, end - longest), true};
  }
  return {text, false};
}

}  // namespace

TEST_CASE("stop strings are found across token borders, however the text is cut") {
  ft::Random random(1);
  const auto word = [&random](uint64_t longest) {
    std::string result;
    for (uint64_t i = 0, count = 1 + random.below(longest); i < count; ++i) result += static_cast<char>('a' + random.below(3));
    return result;
  };
  for (int n = 0; n < 20'000; ++n) {
    std::vector<std::string> stops;
    for (uint64_t i = 0, count = random.below(4); i < count; ++i) stops.push_back(word(5));
    const std::string text = word(20);
    const Outcome expected = expected_of(text, stops);
    ft::StopMatcher matcher(stops);
    Outcome got;
    for (size_t at = 0; at < text.size();) {
      const size_t length = 1 + random.below(4);
      const auto result = matcher.add(std::string_view(text).substr(at, length));
      got.text += result.text;
      got.stopped = result.stopped;
      // Nothing is sent that a stop string may still take back.
      REQUIRE(expected.text.starts_with(got.text));
      at += length;
    }
    got.text += matcher.finish();
    REQUIRE(got.text == expected.text);
    REQUIRE(got.stopped == expected.stopped);
  }
}

TEST_CASE("text is held back only while it may begin a stop string") {
  ft::StopMatcher matcher({"</end>"});
  CHECK(matcher.add("abc<").text == "abc");
  CHECK(matcher.add("/e").text == "");
  CHECK(matcher.add("x").text == "</ex");
  CHECK(matcher.add("</").text == "");
  CHECK(matcher.finish() == "</");
}

TEST_CASE("stop strings at the limits") {
  const std::vector<std::string> most(ft::kMaxStopStrings, std::string(ft::kMaxStopBytes, 'x'));
  CHECK_NOTHROW(ft::StopMatcher{most});
  CHECK_THROWS_AS(ft::StopMatcher{std::vector<std::string>(ft::kMaxStopStrings + 1, "x")}, ft::Error);
  CHECK_THROWS_AS(ft::StopMatcher({std::string(ft::kMaxStopBytes + 1, 'x')}), ft::Error);
  CHECK_THROWS_AS(ft::StopMatcher({""}), ft::Error);
}
