// Under which conditions it was measured, on what, and what was found wrong with them.
#include <spdlog/fmt/fmt.h>

#include "tuner/report/elements.h"
#include "tuner/report/sections.h"

namespace ft {
namespace {

std::string gibibytes(int64_t bytes) {
  return fmt::format("{:.1f} GiB", static_cast<double>(bytes) / (1024.0 * 1024 * 1024));
}

std::string joined(const std::vector<int64_t>& values) {
  std::string text;
  for (const int64_t value : values) text += (text.empty() ? "" : ", ") + std::to_string(value);
  return text;
}

Markup findings(const Conditions& conditions) {
  Markup out;
  if (conditions.findings.empty()) return out;
  HtmlTable table;
  table.caption = "What was found about the machine";
  table.heads = {"level", "finding", "what was seen", "what changes it"};
  for (const Finding& finding : conditions.findings) {
    table.rows.push_back({finding.level, finding.id, finding.what, finding.fix.empty() ? "-" : finding.fix});
  }
  return draw_table(table);
}

}  // namespace

Markup conditions_section(const Profile& profile) {
  const Conditions& c = profile.conditions;
  const HostIdentity& host = profile.identity.host;
  const ModelIdentity& model = profile.identity.model;
  Markup out = findings(c);
  out.append(term_list({
      {"Model", model.family + ", " + model.formats + ", " + model.weights},
      {"CPU", fmt::format("{}, {} of {} cores{}, {} NUMA node{}, {}", host.cpu_model, host.affinity_cores, host.cores,
                          host.quota_cores ? fmt::format(", quota of {:.2f}", *host.quota_cores) : "", host.numa_nodes,
                          host.numa_nodes == 1 ? "" : "s", host.isa)},
      {"Memory", gibibytes(host.memory_bytes) + (c.memory.empty() ? "" : "; " + c.memory)},
      {"GPU", host.gpu_name.empty() ? "" : host.gpu_name + ", driver " + host.gpu_driver + ", " + host.gpu_link},
      {"Link", c.link},
      {"Expert banks", c.banks},
      {"Device memory limit", c.device_memory_limit_bytes ? gibibytes(*c.device_memory_limit_bytes) : ""},
      {"Measured at", "contexts " + joined(c.contexts) + "; sequences " + joined(c.batches)},
      {"Routing", c.routing_source},
      {"Time", fmt::format("{:.0f} of {:.0f} s{}", c.spent_seconds, c.budget_seconds,
                           c.reduced ? "; some probes were shortened" : "")},
      {"CPU throttled", c.throttled_usec > 0
                            ? fmt::format("{:.1f} ms while measuring", static_cast<double>(c.throttled_usec) / 1e3)
                            : "no"},
      {"likwid", c.likwid},
      {"Build",
       fmt::format("{}, {}, {}{}", profile.identity.build.version, profile.identity.build.compiler,
                   c.commit.empty() ? "commit not known" : c.commit.substr(0, 12), c.dirty ? " with changes" : "")},
      {"Made", c.created + ", profile version " + profile.version},
  }));
  if (!profile.skipped.empty()) {
    std::vector<std::string> skipped;
    for (const SkippedProbe& probe : profile.skipped) skipped.push_back(probe.probe + ": " + probe.reason);
    out.open("details").leaf("summary", fmt::format("Probes that were skipped ({})", skipped.size()));
    out.append(bullet_list(skipped)).close();
  }
  return out;
}

}  // namespace ft
