#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "tuner/explain.h"
#include "tuner/explain_words.h"
#include "tuner/flip.h"

namespace ft {
namespace {

constexpr size_t kWidth = 118;

// "- TEXT" in lines of at most kWidth bytes, broken at spaces.
std::string bullet(const std::string& text, const std::string& sign = "- ") {
  std::string out, line = sign;
  size_t at = 0;
  while (at < text.size()) {
    const size_t end = std::min(text.find(' ', at), text.size());
    const std::string word = text.substr(at, end - at);
    if (line.size() + word.size() > kWidth && line.size() > 2) {
      out += line.substr(0, line.find_last_not_of(' ') + 1) + "\n";
      line = "  ";
    }
    line += word + " ";
    at = end + 1;
  }
  return out + line.substr(0, line.find_last_not_of(' ') + 1) + "\n";
}

std::string section(const std::string& title, const std::vector<std::string>& lines) {
  if (lines.empty()) return "";
  std::string text = "\n" + title + "\n";
  for (const std::string& line : lines) text += bullet(line);
  return text;
}

double step_of(const Candidate& candidate, size_t point) {
  double sum = 0;
  for (const CostPart& part : candidate.parts) sum += point < part.seconds.size() ? part.seconds[point] : 0;
  return sum;
}

std::string parts_table(const Candidate& candidate, const Conditions& conditions) {
  std::vector<std::string> heads;
  for (const int64_t context : conditions.contexts) {
    for (const int64_t batch : conditions.batches) heads.push_back(fmt::format("ctx {} x{}", context, batch));
  }
  std::string text = fmt::format("  {:<16}", "");
  for (const std::string& head : heads) text += fmt::format("  {:>20}", head);
  text += "\n";
  for (const CostPart& part : candidate.parts) {
    text += fmt::format("  {:<16}", part.name);
    for (size_t p = 0; p < heads.size(); ++p) {
      const double seconds = p < part.seconds.size() ? part.seconds[p] : 0;
      const double all = step_of(candidate, p);
      text += fmt::format("  {:>20}",
                          fmt::format("{:>9}  {:>3.0f} %", microseconds(seconds), all > 0 ? 100 * seconds / all : 0));
    }
    text += "\n";
  }
  text += fmt::format("  {:<16}", "step");
  for (size_t p = 0; p < heads.size(); ++p) {
    text += fmt::format("  {:>20}", fmt::format("{:>9}  100 %", microseconds(step_of(candidate, p))));
  }
  return text + "\n";
}

std::string parts_text(const Profile& profile) {
  std::string text;
  for (const Candidate* candidate : {chosen_candidate(profile), runner_up_candidate(profile)}) {
    if (candidate == nullptr || candidate->parts.empty()) continue;
    text += (candidate->chosen ? "  chosen: " : "  runner-up: ") + candidate_name(*candidate) + "\n" +
            parts_table(*candidate, profile.conditions);
  }
  return text.empty() ? "" : "\nwhere a step's time goes, as predicted\n" + text;
}

std::string changes_text(const Explanation& why) {
  if (why.changes.empty()) return "";
  std::string text =
      "\nwhat would have to change for the runner-up to win, one at a time, nearest first\n" + bullet(why.change_basis);
  std::string never;
  for (const ChangeNeeded& change : why.changes) {
    if (change.factor) {
      text += bullet(fmt::format("{}: {}", change.term, change.words));
    } else {
      never += (never.empty() ? "" : "; ") + change.words;
    }
  }
  if (!never.empty()) {
    text += bullet(fmt::format("never, from 1/{0:g} to {0:g} times what they are: {1}", kFlipRange, never));
  }
  return text + bullet("both candidates keep their split, slots and threads: a new tuning might find better ones");
}

OrderedJson parts_json(const Candidate* candidate) {
  OrderedJson json = OrderedJson::object();
  if (candidate == nullptr) return json;
  for (const CostPart& part : candidate->parts) json[part.name] = part.seconds;
  return json;
}

}  // namespace

std::string explain_text(const Profile& profile) {
  const Explanation why = explain(profile);
  std::string text;
  for (const std::string& line : why.contradictions) text += bullet(line, "! ");
  const std::string choice = section("why " + profile.decision.strategy, why.choice);
  text += text.empty() && !choice.empty() ? choice.substr(1) : choice;
  text += section("warnings", why.warnings);
  text += parts_text(profile);
  std::vector<std::string> others;
  if (std::string legend = split_legend(profile); !legend.empty()) others.push_back(std::move(legend));
  for (const Candidate& candidate : profile.candidates) {
    if (!candidate.chosen) others.push_back(candidate_name(candidate) + ": " + candidate.verdict);
  }
  text += section("why not the others", others);
  text += changes_text(why);
  return text + section("what this profile does not tell", why.missing);
}

OrderedJson explain_json(const Profile& profile) {
  const Explanation why = explain(profile);
  OrderedJson json;
  json["version"] = profile.version;
  json["strategy"] = profile.decision.strategy;
  json["contradictions"] = why.contradictions;
  json["choice"] = why.choice;
  json["warnings"] = why.warnings;
  json["points"] = point_names(profile.conditions);
  json["parts_seconds"]["chosen"] = parts_json(chosen_candidate(profile));
  json["parts_seconds"]["runner_up"] = parts_json(runner_up_candidate(profile));
  json["candidates"] = OrderedJson::array();
  for (const Candidate& candidate : profile.candidates) {
    OrderedJson row;
    row["name"] = candidate_name(candidate);
    row["chosen"] = candidate.chosen;
    row["verdict"] = candidate.verdict;
    json["candidates"].push_back(std::move(row));
  }
  json["runner_up"] = why.runner_up;
  json["change_basis"] = why.change_basis;
  json["changes"] = OrderedJson::array();
  for (const ChangeNeeded& change : why.changes) {
    OrderedJson row;
    row["term"] = change.term;
    row["unit"] = change.unit;
    row["value"] = change.value;
    row["factor"] = change.factor ? OrderedJson(*change.factor) : OrderedJson(nullptr);
    row["words"] = change.words;
    json["changes"].push_back(std::move(row));
  }
  json["missing"] = why.missing;
  return json;
}

}  // namespace ft
