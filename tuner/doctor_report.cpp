#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "tuner/doctor_checks.h"

namespace ft {
namespace {

std::string_view group_of(const Check& check) { return std::string_view(check.id).substr(0, check.id.find('.')); }

std::string joined(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ", ") + name;
  return text;
}

size_t count(std::span<const Check> checks, CheckState state) {
  return static_cast<size_t>(
      std::count_if(checks.begin(), checks.end(), [state](const Check& check) { return check.state == state; }));
}

}  // namespace

std::string_view check_state_name(CheckState state) {
  constexpr std::string_view kNames[] = {"skipped", "ok", "note", "warning"};
  return kNames[static_cast<size_t>(state)];
}

std::vector<Check> check_facts(const HostFacts& facts) {
  std::vector<Check> checks;
  add_cpu_facts(facts, checks);
  add_memory_facts(facts, checks);
  add_numa_facts(facts, checks);
  return checks;
}

std::vector<Check> worst_checks(std::span<const NamedChecks> intervals) {
  struct Worst {
    Check check;
    std::vector<std::string> names;  // of the intervals in this state
  };
  std::vector<Worst> found;
  for (const NamedChecks& interval : intervals) {
    for (const Check& check : interval.checks) {
      const auto at =
          std::find_if(found.begin(), found.end(), [&](const Worst& worst) { return worst.check.id == check.id; });
      if (at == found.end()) {
        found.push_back({check, {interval.name}});
        continue;
      }
      if (check.state > at->check.state) {
        *at = {check, {interval.name}};
      } else if (check.state == at->check.state) {
        at->names.push_back(interval.name);
        if (check.size > at->check.size) at->check = check;
      }
    }
  }
  std::vector<Check> checks;
  for (Worst& worst : found) {
    const bool spoilt = worst.check.state == CheckState::kNote || worst.check.state == CheckState::kWarning;
    if (spoilt && intervals.size() > 1) worst.check.what += " (" + joined(worst.names) + ")";
    checks.push_back(std::move(worst.check));
  }
  return checks;
}

std::vector<Finding> findings_of(std::span<const Check> checks) {
  std::vector<Finding> findings;
  for (const CheckState state : {CheckState::kWarning, CheckState::kNote}) {
    for (const Check& check : checks) {
      if (check.state != state || findings.size() == kMaxFindings) continue;
      findings.push_back({check.id, std::string(check_state_name(state)), check.what, check.fix});
    }
  }
  return findings;
}

bool any_warning(std::span<const Check> checks) { return count(checks, CheckState::kWarning) > 0; }

std::string doctor_text(std::span<const Check> checks) {
  size_t width = 0;
  for (const Check& check : checks) width = std::max(width, check.id.size());
  std::vector<std::string_view> groups;
  for (const Check& check : checks) {
    if (std::find(groups.begin(), groups.end(), group_of(check)) == groups.end()) groups.push_back(group_of(check));
  }
  std::string text;
  for (const std::string_view group : groups) {
    if (!text.empty()) text += "\n";
    for (const Check& check : checks) {
      if (group_of(check) != group) continue;
      text += fmt::format("{:<8} {:<{}}  {}\n", check_state_name(check.state), check.id, width, check.what);
      if (!check.fix.empty()) text += fmt::format("{:<8} {:<{}}  > {}\n", "", "", width, check.fix);
    }
  }
  return text + fmt::format("\nwarnings {}, notes {}, ok {}, skipped {}\n", count(checks, CheckState::kWarning),
                            count(checks, CheckState::kNote), count(checks, CheckState::kOk),
                            count(checks, CheckState::kSkipped));
}

OrderedJson doctor_json(std::span<const Check> checks) {
  OrderedJson list = OrderedJson::array();
  for (const Check& check : checks) {
    list.push_back({{"id", check.id},
                    {"state", std::string(check_state_name(check.state))},
                    {"what", check.what},
                    {"fix", check.fix}});
  }
  return {{"checks", std::move(list)},
          {"warnings", count(checks, CheckState::kWarning)},
          {"notes", count(checks, CheckState::kNote)}};
}

}  // namespace ft
