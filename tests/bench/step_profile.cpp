#include "tests/bench/step_profile.h"

#include <cxxabi.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <memory>

#include "kernels/base/statistics.h"

namespace ft::bench {
namespace {

using Step = std::span<const KernelSpan>;

std::vector<Step> split_steps(std::span<const KernelSpan> kernels, uint64_t gap_ns) {
  std::vector<Step> steps;
  size_t begin = 0;
  uint64_t ended = kernels.front().end_ns;
  for (size_t i = 1; i <= kernels.size(); ++i) {
    if (i == kernels.size() || kernels[i].start_ns > ended + gap_ns) {
      steps.push_back(kernels.subspan(begin, i - begin));
      begin = i;
    }
    if (i < kernels.size()) ended = std::max(ended, kernels[i].end_ns);
  }
  return steps;
}

// Steps as most of them are: the first records graphs, the last may be cut off.
std::vector<Step> usual_steps(const std::vector<Step>& steps) {
  if (steps.empty()) return {};
  std::vector<double> sizes;
  for (const Step& step : steps) sizes.push_back(static_cast<double>(step.size()));
  const auto usual = static_cast<size_t>(median(sizes));
  std::vector<Step> kept;
  std::copy_if(steps.begin(), steps.end(), std::back_inserter(kept), [&](const Step& s) { return s.size() == usual; });
  return kept;
}

struct Sums {
  std::vector<double> durations_ns;
  double exposed_ns = 0, idle_ns = 0;
};

constexpr std::string_view kAnonymous = "(anonymous namespace)::";

std::string demangled_name(std::string_view name) {
  std::string text(name);
  if (name.starts_with("_Z")) {  // others would be read as types: "a" as signed char
    int status = 0;
    const std::unique_ptr<char, decltype(&std::free)> demangled(
        abi::__cxa_demangle(text.c_str(), nullptr, nullptr, &status), &std::free);
    if (status == 0) text = demangled.get();
  }
  for (size_t at; (at = text.find(kAnonymous)) != std::string::npos;) text.erase(at, kAnonymous.size());
  return text;
}

// Of a template argument list without its brackets: no casts, "(ft::Kind)1", and no namespaces.
std::string readable_arguments(std::string_view arguments) {
  std::string text;
  int parentheses = 0;
  for (const char c : arguments) {
    parentheses += c == '(' ? 1 : 0;
    if (parentheses == 0) text += c;
    parentheses -= c == ')' ? 1 : 0;
    if (!text.ends_with("::")) continue;
    const size_t before = text.find_last_of("<, ", text.size() - 3);
    text.erase(before == std::string::npos ? 0 : before + 1);
  }
  return text;
}

void sort_by_start(std::vector<KernelSpan>& kernels) {
  std::sort(kernels.begin(), kernels.end(), [](const auto& a, const auto& b) { return a.start_ns < b.start_ns; });
}

// Steps of one number of kernels, each in order of starts.
StepProfile profile_of(const std::vector<Step>& steps, std::string (*name_of)(std::string_view)) {
  StepProfile profile;
  if (steps.empty()) return profile;
  std::map<std::string, Sums> by_name;
  double span_ns = 0;
  for (const Step& step : steps) {
    uint64_t ended = step.front().start_ns;
    for (const KernelSpan& kernel : step) {
      const std::string name = name_of(kernel.name);
      Sums& sums = by_name[name];
      sums.durations_ns.push_back(static_cast<double>(kernel.end_ns - kernel.start_ns));
      if (name == kBesideOthers) continue;
      if (kernel.start_ns > ended) sums.idle_ns += static_cast<double>(kernel.start_ns - ended);
      const uint64_t from = std::max(kernel.start_ns, ended);
      if (kernel.end_ns > from) sums.exposed_ns += static_cast<double>(kernel.end_ns - from);
      ended = std::max(ended, kernel.end_ns);
    }
    span_ns += static_cast<double>(ended - step.front().start_ns);
  }
  profile.steps = static_cast<int>(steps.size());
  const double a_step = 1e-3 / static_cast<double>(steps.size());
  profile.span_us = span_ns * a_step;
  for (const auto& [name, sums] : by_name) {
    profile.rows.push_back({name, static_cast<double>(sums.durations_ns.size()) / static_cast<double>(steps.size()),
                            median(sums.durations_ns) * 1e-3, sums.exposed_ns * a_step, sums.idle_ns * a_step});
  }
  std::stable_sort(profile.rows.begin(), profile.rows.end(), [](const auto& a, const auto& b) {
    return a.exposed_us + a.idle_before_us > b.exposed_us + b.idle_before_us;
  });
  return profile;
}

}  // namespace

std::string readable_kernel_name(std::string_view name) {
  std::string text = demangled_name(name);
  // The name ends where its own arguments begin; a return type, which templates have, stands before a space.
  const size_t end = text.find_first_of("<(");
  if (end != std::string::npos) text.erase(end);
  const size_t space = text.rfind(' ');
  if (space != std::string::npos) text.erase(0, space + 1);
  const size_t colon = text.rfind(':');
  return colon == std::string::npos ? text : text.substr(colon + 1);
}

std::string full_kernel_name(std::string_view name) {
  const std::string text = demangled_name(name);
  const size_t begin = text.find_first_of("<(");
  if (begin == std::string::npos || text[begin] == '(') return readable_kernel_name(name);
  size_t end = begin + 1;
  for (int open = 1; end < text.size(); ++end) {
    open += text[end] == '<' ? 1 : text[end] == '>' ? -1 : 0;
    if (open == 0) break;
  }
  return readable_kernel_name(name) + "<" +
         readable_arguments(std::string_view(text).substr(begin + 1, end - begin - 1)) + ">";
}

StepProfile profile_steps(std::vector<KernelSpan> kernels, uint64_t gap_ns) {
  if (kernels.empty()) return {};
  sort_by_start(kernels);
  return profile_of(usual_steps(split_steps(kernels, gap_ns)), readable_kernel_name);
}

StepProfile profile_apart(std::vector<std::vector<KernelSpan>> traced) {
  std::vector<Step> steps;
  for (std::vector<KernelSpan>& kernels : traced) {
    sort_by_start(kernels);
    if (!kernels.empty()) steps.emplace_back(kernels);
  }
  return profile_of(usual_steps(steps), full_kernel_name);
}

LayerProfile profile_layer(const StepProfile& fewer, const StepProfile& more, int layers) {
  LayerProfile profile;
  profile.us = (more.span_us - fewer.span_us) / layers;
  profile.rest_us = profile.us;
  for (const ProfileRow& row : more.rows) {
    const auto same = [&](const ProfileRow& other) { return other.name == row.name; };
    const auto found = std::find_if(fewer.rows.begin(), fewer.rows.end(), same);
    const ProfileRow before = found == fewer.rows.end() ? ProfileRow{} : *found;
    const double launches = (row.launches - before.launches) / layers;
    if (launches <= 0) continue;
    const double us = (row.exposed_us + row.idle_before_us - before.exposed_us - before.idle_before_us) / layers;
    profile.rows.push_back({row.name, launches, row.duration_us, us});
    profile.launches += launches;
    profile.rest_us -= us;
  }
  std::stable_sort(profile.rows.begin(), profile.rows.end(), [](const auto& a, const auto& b) { return a.us > b.us; });
  return profile;
}

}  // namespace ft::bench
