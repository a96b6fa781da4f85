#include "tuner/explain_words.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <cmath>

namespace ft {
namespace {

struct Words {
  std::string_view name;
  std::string_view what;  // "a layer's copies would have to start"
  std::string_view per;   // what the time is of
};
// Costs whose change is said as "WHAT N.Nx faster (FROM -> TO PER)".
constexpr Words kWords[] = {
    {"a_layer", "router, merge and hand-over of a layer would have to be", "a layer"},
    {"s_layer_token", "router and merge would have to be", "a token and layer"},
    {"a_g", "starting the work on a layer's slots would have to be", "a layer"},
    {"s_g", "computing an expert in a slot would have to be", "an expert"},
    {"e_g", "each further token of an expert in a slot would have to be", "a token"},
    {"a_c", "starting the CPU on a layer's experts would have to be", "a layer"},
    {"s_c", "the CPU would have to be", "an expert"},
    {"e_c", "each further token of an expert on the CPU would have to be", "a token"},
    {"a_f", "starting a layer's copies would have to be", "a layer"},
    {"s_f", "the link would have to be", "an expert"},
    {"s_p", "copying a promoted expert would have to be", "an expert"},
    {"a_w", "waking threads that slept until the first copy would have to be", "a layer"},
    {"dense_fixed", "the step without experts (norms, products, head) would have to be", "a step"},
    {"dense_per_token", "the step without experts would have to be, for each token,", "a token"},
    {"dense_per_position", "attention would have to be", "a position of the first sequence"},
    {"dense_per_further_position", "attention of further sequences would have to be", "a position"},
};

const Words* words_of(std::string_view name) {
  const auto* found =
      std::find_if(std::begin(kWords), std::end(kWords), [&](const Words& words) { return words.name == name; });
  return found == std::end(kWords) ? nullptr : found;
}

struct Change {
  std::string now, then;
};

// As many decimals as it takes to see that they differ: a factor beside two equal numbers would contradict them.
// `show`: (value, decimals more than usual) -> text.
template <class Show>
Change change_of(double now, double then, Show show) {
  constexpr int kMostMore = 6;
  Change change{show(now, 0), show(then, 0)};
  for (int more = 1; more <= kMostMore && change.now == change.then; ++more)
    change = {show(now, more), show(then, more)};
  return change;
}

std::string percent(double share, int more) { return fmt::format("{:.{}f} %", 100 * share, more); }

constexpr double kLeastTimes = 1.001;  // three decimals say it

// A choice at the edge: no number of a profile is known that well.
std::string nearly_words(const std::string& what, double now, const std::string& per, bool faster) {
  return fmt::format("{} less than {:.1f} % {} than {}{}", what, 100 * (kLeastTimes - 1), faster ? "faster" : "slower",
                     microseconds(now), per);
}

// Contentions are shares of the time alone.
std::string contention_words(bool compute, double now, std::optional<double> factor) {
  const std::string subject =
      compute ? "copies slow the CPU's work beside them by " : "the CPU's work slows copies beside it by ";
  const Change change = change_of(now, now * factor.value_or(2), percent);
  return subject + change.now + (factor ? "; it would have to be " + change.then : "");
}

}  // namespace

std::string microseconds(double seconds, int more) {
  const double us = seconds * 1e6;
  const int decimals = us >= 99.95 ? 0 : us >= 9.995 ? 1 : us >= 0.0995 || us <= 0 ? 2 : us >= 0.00995 ? 4 : 6;
  return fmt::format("{:.{}f} us", us, decimals + more);
}

std::string percent_more(double ratio) {
  const double percent = 100 * (ratio - 1);
  return percent < 0.5 ? "less than 1 %" : fmt::format("{:.0f} %", percent);
}

std::string change_words(std::string_view name, Device device, double now, std::optional<double> factor,
                         double expert_bytes) {
  if (name == "k_c" || name == "k_f") return contention_words(name == "k_c", now, factor);
  const Words* words = words_of(name);
  const std::string what = words == nullptr ? std::string(name) + " would have to be" : std::string(words->what);
  const std::string per = words == nullptr ? "" : " " + std::string(words->per);
  if (!factor) {
    return fmt::format("{} ({}{})", what.substr(0, what.find(" would have to be")), microseconds(now), per);
  }
  const double then = now * *factor;
  const bool faster = *factor < 1;
  const double times = std::max(*factor, 1 / *factor);
  if (times < kLeastTimes) return nearly_words(what, now, per, faster);
  const std::string amount = fmt::format("{:.{}f}x {}", times, times < 1.1 ? 3 : 2, faster ? "faster" : "slower");
  const Change time = change_of(now, then, microseconds);
  const Change bandwidth = change_of(now, then, [&](double seconds, int more) {
    return fmt::format("{:.{}f}", expert_bytes / seconds * 1e-9, 1 + more);
  });
  std::string detail = fmt::format("{} -> {}{}", time.now, time.then, per);
  if (name == "s_f" && expert_bytes > 0) {
    return fmt::format("the {} would have to carry {} GB/s of experts instead of {}: {} ({})",
                       device == Device::kCuda ? "link" : "copy thread", bandwidth.then, bandwidth.now, amount, detail);
  }
  if (name == "s_c") {
    if (expert_bytes > 0) detail += fmt::format(", {} -> {} GB/s", bandwidth.now, bandwidth.then);
    return fmt::format("{} {} per expert ({})", what, amount, detail);
  }
  return fmt::format("{} {} ({})", what, amount, detail);
}

}  // namespace ft
