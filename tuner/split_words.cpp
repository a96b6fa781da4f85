#include "tuner/split_words.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/base/hash.h"
#include "tuner/search_space.h"

namespace ft {
namespace {

constexpr std::string_view kPromote = "promote ";

// "1, 5 .. 29, 31": a progression of four and more as its first two and its last.
std::string listed(const std::vector<int>& numbers) {
  constexpr size_t kFewest = 4;
  std::string text;
  const auto add = [&text](const char* between, int number) {
    text += (text.empty() ? "" : between) + std::to_string(number);
  };
  for (size_t i = 0; i < numbers.size();) {
    size_t end = std::min(i + 2, numbers.size());
    while (end < numbers.size() && numbers[end] - numbers[end - 1] == numbers[i + 1] - numbers[i]) ++end;
    if (end - i < kFewest) {
      add(", ", numbers[i++]);
      continue;
    }
    add(", ", numbers[i]);
    add(", ", numbers[i + 1]);
    add(" .. ", numbers[end - 1]);
    i = end;
  }
  return text;
}

// A row of the decision table stays a row: what is longer ends with what tells it from another that begins so.
std::string shortened(const std::string& text, size_t changes) {
  constexpr size_t kMaxSplitBytes = 100;  // 18 changes, seen in a split for 40 misses, take 90
  constexpr size_t kTagDigits = 6;
  if (text.size() <= kMaxSplitBytes) return text;
  const std::string rest =
      ", .. (" + std::to_string(changes) + " changes, number " + hash_hex(text).substr(0, kTagDigits) + ")";
  return text.substr(0, text.rfind(", ", kMaxSplitBytes - rest.size())) + rest;
}

// No two tables of one size read the same: splits often differ only beyond what a layer commonly misses.
std::string split_text(const SplitTable& table) {
  bool all = true, none = true, by_one = true;
  std::vector<int> changes;  // numbers of misses at which the fetched count changes
  std::string each;          // the same with the counts, for tables that do not grow one by one
  int most = 0;
  for (size_t m = 1; m < table.size(); ++m) {
    all = all && table[m] == static_cast<int>(m);
    none = none && table[m] == 0;
    if (table[m] == table[m - 1]) continue;
    by_one = by_one && table[m] == table[m - 1] + 1;
    changes.push_back(static_cast<int>(m));
    each += (each.empty() ? "" : ", ") + std::to_string(table[m]) + " from " + std::to_string(m);
    most = std::max(most, table[m]);
  }
  if (all) return "fetch all";
  if (none) return "fetch none";
  const bool is_cap = by_one && changes.back() == most;  // of m misses m, up to `most`
  if (is_cap) return "fetch at most " + std::to_string(most);
  for (const double share : kFetchedShares) {
    if (table != constant_share(static_cast<int>(table.size()) - 1, share)) continue;
    return "fetch " + std::to_string(std::lround(100 * share)) + " %, rounded up";
  }
  return shortened(by_one ? std::string(kSplitByChanges) + listed(changes) : "fetch " + each, changes.size());
}

}  // namespace

std::string describe_promotions(PromotionRate promotions) {
  const double experts = promotions.per_plan();
  if (experts >= 1) return fmt::format("{}{:g}", kPromote, experts);
  const double layers = 1 / experts;
  return fmt::format("{}1 in {:.4g} layers", kPromote, layers);
}

std::string describe_split(const SplitTable& table, PromotionRate promotions) {
  std::string text = split_text(table);
  if (promotions.any()) text += "; " + describe_promotions(promotions);
  return text;
}

bool describes_promotions(std::string_view split) { return split.find(kPromote) != std::string_view::npos; }

}  // namespace ft
