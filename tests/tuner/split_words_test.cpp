#include "tuner/split_words.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <climits>
#include <cmath>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "kernels/base/random.h"
#include "tests/tuner/search_bench.h"
#include "tuner/search_space.h"

namespace ft {

TEST_CASE("splits read well") {
  CHECK(describe_split({0, 1, 2, 3}, 0) == "fetch all");
  CHECK(describe_split({0, 0, 0, 0}, 2) == "fetch none; promote 2");
  CHECK(describe_split({0, 1, 1, 1, 1, 1}, 0) == "fetch at most 1");
  CHECK(describe_split({0, 1, 2, 2, 2}, 1) == "fetch at most 2; promote 1");
  CHECK(describe_split({0, 0, 1}, 1) == "fetch 1 more at 2; promote 1");
  for (const PromotionRate rate : {PromotionRate(0), PromotionRate::one_in(16), PromotionRate(1), PromotionRate(2)}) {
    CHECK(describes_promotions(describe_split({0, 0, 1}, rate)) == rate.any());
  }
  CHECK(describe_split({0, 1, 1, 2, 2, 3}, 1) == "fetch 50 %, rounded up; promote 1");
  CHECK(describe_split({0, 1, 1, 2, 2, 2}, 1) == "fetch 1 more at 1, 3; promote 1");
  CHECK(describe_split({0, 0, 1, 1, 2, 2, 3, 3, 4}, 0) == "fetch 1 more at 2, 4 .. 8");
  CHECK(describe_split({0, 1, 2, 3, 4, 4, 5}, 0) == "fetch 1 more at 1, 2 .. 4, 6");
  CHECK(describe_split({0, 0, 2, 1}, 0) == "fetch 2 from 2, 1 from 3");
  CHECK(describe_split({0, 0, 1}, PromotionRate::one_in(16)) == "fetch 1 more at 2; promote 1 in 16 layers");
  CHECK(describe_promotions(PromotionRate::of_experts(1.5)) == "promote 1.5");
}

namespace {

// Reads a split's text back, by the words that explain it.
SplitTable table_of(const std::string& text, size_t size) {
  SplitTable table(size, 0);
  const auto number_after = [&](const std::string& words) { return std::stoi(text.substr(words.size())); };
  if (text == "fetch none") return table;
  if (text == "fetch all" || text.starts_with("fetch at most ")) {
    const int most = text == "fetch all" ? INT_MAX : number_after("fetch at most ");
    for (size_t m = 0; m < size; ++m) table[m] = std::min(static_cast<int>(m), most);
    return table;
  }
  if (text.ends_with(" %, rounded up")) {
    for (size_t m = 0; m < size; ++m) {
      table[m] = static_cast<int>(std::ceil(number_after("fetch ") * static_cast<double>(m) / 100));
    }
    return table;
  }
  const bool more = text.starts_with(kSplitByChanges);
  std::istringstream words(text.substr(more ? kSplitByChanges.size() : 6));
  std::map<int, int> steps;  // by misses: what is fetched from there on, or one more
  std::vector<int> last;
  for (std::string word; words >> word;) {
    if (word == "..") {
      words >> word;
      const int step = last[1] - last[0];
      for (int m = last[1]; m <= std::stoi(word); m += step) steps[m] = 1;
      last = {};
    } else if (more) {
      steps[std::stoi(word)] = 1;
      last = {last.empty() ? 0 : last.back(), std::stoi(word)};
    } else {
      std::string from, misses;
      words >> from >> misses;
      steps[std::stoi(misses)] = std::stoi(word);
    }
  }
  int fetched = 0;
  for (size_t m = 0; m < size; ++m) {
    if (const auto step = steps.find(static_cast<int>(m)); step != steps.end()) {
      fetched = more ? fetched + 1 : step->second;
    }
    table[m] = fetched;
  }
  return table;
}

}  // namespace

TEST_CASE("a split's text says all of it: no two read the same, and the common ones stay short") {
  constexpr size_t kLongest = 100;  // characters: a row of the decision table stays a row
  Random random(7);
  std::map<std::string, SplitTable> seen;
  const auto check = [&](const SplitTable& table) {
    const std::string text = describe_split(table, 0);
    CAPTURE(text);
    CHECK(text.size() <= kLongest);
    CHECK(seen.emplace(std::to_string(table.size()) + text, table).first->second == table);
    const bool whole = !text.ends_with(")");
    if (whole) CHECK(table_of(text, table.size()) == table);
    return whole;
  };
  SearchBench bench(Device::kHost, 48, 20e-6, 20e-6, 50e-6);
  for (int size = 1; size <= 64; ++size) {
    for (const SplitTable& table : hybrid_splits(bench.input, bench.input.models[0], size)) check(table);
    for (const double share : kFetchedShares) CHECK(check(constant_share(size, share)));
    for (const int cap : kFetchCaps) CHECK(check(capped(size, cap)));
    for (int i = 0; i < 50; ++i) {  // growing by one, as a model's own splits do, and anything at all
      SplitTable steady(static_cast<size_t>(size) + 1, 0), any = steady;
      for (size_t m = 1; m < steady.size(); ++m) {
        steady[m] = steady[m - 1] + static_cast<int>(random.below(2));
        any[m] = static_cast<int>(random.below(m + 1));
      }
      CHECK((check(steady) || size > 24));
      check(any);
    }
  }
}

}  // namespace ft
