// Checked against: well-formedness by an independent reader (well_formed.h), the sections and sentences that a page
// must have, and profiles whose every text is hostile or whose numbers are extreme.
#include <doctest/doctest.h>

#include <cstdlib>
#include <limits>

#include "tests/profiles/sample_profile.h"
#include "tests/tuner/well_formed.h"
#include "tuner/report/page.h"

namespace ft {
namespace {

constexpr const char* kHostile = "<script>alert(1)</script>&amp;\"'</td></style>]]>";

bool holds(const std::string& text, const std::string& words) { return text.find(words) != std::string::npos; }

std::string page_of(const Profile& profile) {
  const ReportedProfile one[] = {{"profile.json", profile}};
  return report_page(one);
}

Profile hostile_profile() {
  Profile p = sample_profile();
  for (std::string* text : {&p.version,
                            &p.identity.host.cpu_model,
                            &p.identity.host.isa,
                            &p.identity.host.gpu_name,
                            &p.identity.host.gpu_driver,
                            &p.identity.host.gpu_link,
                            &p.identity.build.version,
                            &p.identity.build.compiler,
                            &p.identity.model.family,
                            &p.identity.model.formats,
                            &p.identity.model.weights,
                            &p.conditions.commit,
                            &p.conditions.created,
                            &p.conditions.routing_source,
                            &p.conditions.memory,
                            &p.conditions.link,
                            &p.conditions.banks,
                            &p.conditions.likwid,
                            &p.conditions.forced[0],
                            &p.conditions.findings[0].id,
                            &p.conditions.findings[0].level,
                            &p.conditions.findings[0].what,
                            &p.conditions.findings[0].fix,
                            &p.measurements[0].name,
                            &p.skipped[0].probe,
                            &p.skipped[0].reason,
                            &p.cost_model.parameters[0].name,
                            &p.cost_model.parameters[0].unit,
                            &p.routing->cache_policy,
                            &p.decision.runner_up,
                            &p.decision.reason,
                            &p.decision.warnings[0],
                            &p.decision.strategy,
                            &p.serve.model_path}) {
    *text += kHostile;
  }
  for (Candidate& candidate : p.candidates) {
    candidate.strategy += kHostile;
    candidate.split += kHostile;
    candidate.fetch_mechanism += kHostile;
    candidate.verdict += kHostile;
    for (CostPart& part : candidate.parts) part.name += kHostile;
  }
  return p;
}

// Of two cores, by the first version.
Profile old_profile() {
  return read_profile(std::string(std::getenv("FT_TEST_DATA")) + "/../profiles/version_1_0.json");
}

}  // namespace

TEST_CASE("every section is there, the page loads nothing and has no script") {
  const std::string page = page_of(sample_profile());
  CHECK(well_formed(page) == "");
  CHECK(page.starts_with("<!DOCTYPE html>\n<html lang=\"en\""));
  for (const char* id :
       {"decision", "candidates", "changes", "predicted", "time", "ceilings", "sweep", "routing", "conditions"}) {
    CHECK(holds(page, std::string("<section id=\"") + id + "\">"));
    CHECK(holds(page, std::string("href=\"#") + id + "\""));
  }
  for (const char* words :
       {"<script", "<link", "<img", "<iframe", "src=", "@import", "url(", "onload", "javascript:"}) {
    CHECK(!holds(page, words));
  }
  // The one address is the name of a namespace.
  for (size_t at = page.find("http"); at != std::string::npos; at = page.find("http", at + 1)) {
    CHECK(page.substr(at - 7, 7) == "xmlns=\"");
  }
  CHECK(holds(page, "prefers-color-scheme: dark"));
  CHECK(holds(page, "@media print"));
  CHECK(holds(page, "<td class=\"t\">a quota of 1.5 cores</td>"));  // the finding
  CHECK(holds(page, "<td class=\"t\">raise cpu.max</td>"));
}

TEST_CASE("text of a profile stays text") {
  const std::string page = page_of(hostile_profile());
  CHECK(well_formed(page) == "");
  CHECK(!holds(page, "<script"));
  CHECK(!holds(page, "alert(1)<"));
  CHECK(holds(page, "&lt;script&gt;alert(1)&lt;/script&gt;&amp;amp;&quot;&#39;&lt;/td&gt;&lt;/style&gt;]]&gt;"));
  const ReportedProfile named[] = {{kHostile, sample_profile()}, {"b.json", hostile_profile()}};
  CHECK(well_formed(report_page(named)) == "");
  CHECK(!holds(report_page(named), "<script"));
}

TEST_CASE("several profiles: a panel each in every section, and a table of them") {
  const ReportedProfile both[] = {{"a.json", sample_profile()}, {"b.json", old_profile()}};
  const std::string page = report_page(both);
  CHECK(well_formed(page) == "");
  CHECK(holds(page, "<section id=\"side\">"));
  size_t panels = 0;
  for (size_t at = page.find("<article"); at != std::string::npos; at = page.find("<article", at + 1)) ++panels;
  CHECK(panels == 2 * 9);
  CHECK(holds(page, "<h3>b.json</h3>"));
  CHECK(report_page(both) == page);
}

TEST_CASE("a profile of version 1.0 is drawn as far as it goes, and says what it lacks") {
  const std::string page = page_of(old_profile());
  CHECK(well_formed(page) == "");
  CHECK(holds(page, "A profile of version 1.0.0 does not record the parts of a predicted step (1.4 does)."));
  CHECK(holds(page, "A profile of version 1.0.0 does not record what caches of other sizes would do (1.4 does)."));
  CHECK(holds(page, "class=\"alert\">Measured contradicts predicted: resident takes 0.77x"));
  CHECK(holds(page, "16 decode measurements: the prediction is off by "));
  CHECK(holds(page, "alone on the CPU"));
  CHECK(holds(page, "reading memory"));
}

TEST_CASE("a profile with almost nothing, and one with extreme numbers") {
  Profile bare;
  CHECK(well_formed(page_of(bare)) == "");
  Profile extreme = sample_profile();
  const double huge = std::numeric_limits<double>::max(), tiny = std::numeric_limits<double>::denorm_min();
  extreme.candidates[0].predicted_tok_s = {huge, tiny, 0, 1};
  extreme.candidates[0].measured_tok_s = {tiny, huge, 1, 0};
  extreme.candidates[0].parts = {{"dense", {huge, 0, tiny, 1}}, {"fetch", {huge}}};
  extreme.measurements[0].values = {huge, huge, tiny, 0};
  extreme.serve.ceiling_gbps = huge;
  extreme.routing->points[0].hit_rate = huge;
  extreme.routing->points[0].misses_histogram.assign(5000, int64_t{1} << 62);
  extreme.decision.margin = extreme.decision.gap = huge;
  CHECK(well_formed(page_of(extreme)) == "");
}

}  // namespace ft
