#include "engine/server/metrics.h"

#include <array>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <string_view>

#include "kernels/base/size_text.h"

namespace ft {
namespace {

struct Metric {
  const char* name;
  const char* type;  // counter or gauge
  const char* help;
  double value;
};

double drift_sign(DriftState state) { return state == DriftState::kBelow ? -1 : state == DriftState::kAbove ? 1 : 0; }

std::array<Metric, 40> metrics(const ServedProfile& profile, const ServiceStats& s) {
  const auto d = [](uint64_t value) { return static_cast<double>(value); };
  const DriftSummary& drift = s.drift.summary;
  return {{
      {"ft_uptime_seconds", "gauge", "Seconds since the service started", s.uptime_seconds},
      {"ft_requests_finished_total", "counter", "Requests answered to their end", d(s.scheduler.requests_finished)},
      {"ft_requests_failed_total", "counter", "Requests ended by an error", d(s.scheduler.requests_failed)},
      {"ft_requests_cancelled_total", "counter", "Requests cancelled", d(s.scheduler.requests_cancelled)},
      {"ft_requests_running", "gauge", "Requests in the batch", d(s.scheduler.running)},
      {"ft_requests_waiting", "gauge", "Requests in the queue", d(s.scheduler.waiting)},
      {"ft_prompt_tokens_total", "counter", "Prompt tokens processed", d(s.scheduler.prompt_tokens)},
      {"ft_generated_tokens_total", "counter", "Tokens generated", d(s.scheduler.generated_tokens)},
      {"ft_decode_steps_total", "counter", "Decode steps", d(s.engine.decode_steps)},
      {"ft_decode_seconds_total", "counter", "Seconds spent in decode steps", s.engine.decode_seconds},
      {"ft_prefill_seconds_total", "counter", "Seconds spent in prefill steps", s.engine.prefill_seconds},
      {"ft_expert_hits_total", "counter", "Expert activations found in slots", d(s.engine.expert_hits)},
      {"ft_expert_fetched_total", "counter", "Expert activations fetched over the link", d(s.engine.expert_fetched)},
      {"ft_expert_cpu_total", "counter", "Expert activations computed on the CPU", d(s.engine.expert_cpu)},
      {"ft_expert_promoted_total", "counter", "CPU-computed experts copied into slots", d(s.engine.expert_promoted)},
      {"ft_expert_predicted_total", "counter", "Experts predicted for a next layer", d(s.engine.expert_predicted)},
      {"ft_expert_prefetched_total", "counter", "Experts copied ahead of need", d(s.engine.expert_prefetched)},
      {"ft_prefetch_useful_total", "counter", "Prefetched experts that were used", d(s.engine.prefetch_useful)},
      {"ft_prefetch_late_total", "counter", "Prefetched experts that were waited for", d(s.engine.prefetch_late)},
      {"ft_link_bytes_total", "counter", "Bytes moved into slots", d(s.engine.bytes_fetched)},
      {"ft_link_wait_seconds_total", "counter", "Seconds compute waited for the link", s.engine.link_wait_seconds},
      {"ft_decode_link_wait_seconds_total", "counter", "Of them in decode steps; 0 on a GPU",
       s.engine.decode_link_wait_seconds},
      {"ft_cpu_wait_seconds_total", "counter", "Seconds decode steps waited for the CPU's threads",
       s.engine.cpu_wait_seconds},
      {"ft_attention_seconds_total", "counter", "Seconds decode steps spent in attention; 0 on a GPU",
       s.engine.attention_seconds},
      {"ft_throttled_seconds_total", "counter", "Seconds the CPU quota stopped each thread in decode steps",
       s.drift.throttled_seconds},
      {"ft_hit_rate", "gauge", "Share of activations found in slots", s.hit_rate},
      {"ft_miss_fetched_share", "gauge", "Share of misses that were fetched", s.fetched_share},
      {"ft_miss_cpu_share", "gauge", "Share of misses computed on the CPU", s.cpu_share},
      {"ft_decode_tokens_per_second", "gauge", "Achieved decode rate", s.decode_tok_s},
      {"ft_predicted_tokens_per_second", "gauge", "The profile's prediction", profile.predicted_tok_s},
      {"ft_achieved_over_predicted", "gauge", "Achieved over predicted rate of decode steps with one sequence",
       s.achieved_over_predicted},
      {"ft_decode_gigabytes_per_second", "gauge", "Weight bytes read by decode steps", s.decode_gbps},
      {"ft_drift_judged", "gauge", "1: the profile says what to expect", s.drift.judged ? 1.0 : 0.0},
      {"ft_drift_ratio", "gauge", "Achieved over expected rate of the last window; 0: none was judged", drift.ratio},
      {"ft_drift_band_low", "gauge", "Lower edge of the expected ratio", drift.low},
      {"ft_drift_band_high", "gauge", "Upper edge of the expected ratio", drift.high},
      {"ft_drift_state", "gauge", "-1 below the band, 1 above it, 0 inside or not judged", drift_sign(drift.state)},
      {"ft_drift_left_total", "counter", "Times the rate left the band", d(drift.times_left)},
      {"ft_drift_steps_not_judged_total", "counter", "Decode steps outside of what was tuned",
       d(drift.steps_not_judged)},
      {"ft_fallback_active", "gauge", "1: fell back from the profile's strategy",
       s.drift.fell_back_from.empty() ? 0.0 : 1.0},
  }};
}

std::string format_number(double value) {
  char text[64];
  std::snprintf(text, sizeof text, "%.17g", value);
  return text;
}

OrderedJson drift_json(const DriftStats& stats) {
  const DriftSummary& summary = stats.summary;
  OrderedJson json = {{"judged", stats.judged},           {"state", drift_state_name(summary.state)},
                      {"ratio", summary.ratio},           {"band", {summary.low, summary.high}},
                      {"windows", summary.windows},       {"steps_not_judged", summary.steps_not_judged},
                      {"times_left", summary.times_left}, {"throttled_seconds", stats.throttled_seconds}};
  if (summary.last) {
    const DriftEvent& event = *summary.last;
    json["last_change"] = {{"state", drift_state_name(event.state)},
                           {"ratio", event.ratio},
                           {"steps", event.steps},
                           {"expected_ms_per_step", 1e3 * event.expected_seconds},
                           {"achieved_ms_per_step", 1e3 * event.achieved_seconds}};
    if (event.state != DriftState::kInside) {
      json["last_change"]["term"] = drift_term_name(event.term);
      json["last_change"]["moved_ms_per_step"] = 1e3 * event.moved_seconds;
    }
  }
  json["fallback"] = stats.has_fallback ? "ready" : stats.fell_back_from.empty() ? "none" : "active";
  if (!stats.fell_back_from.empty()) json["fell_back_from"] = stats.fell_back_from;
  return json;
}

std::string percent(double share) {
  char text[32];
  std::snprintf(text, sizeof text, "%.0f %%", 100 * share);
  return text;
}

}  // namespace

std::string prometheus_text(const ServedProfile& profile, const ServiceStats& stats) {
  std::string text;
  for (const Metric& metric : metrics(profile, stats)) {
    text += std::string("# HELP ") + metric.name + " " + metric.help + "\n# TYPE " + metric.name + " " + metric.type +
            "\n" + metric.name + " " + format_number(metric.value) + "\n";
  }
  return text;
}

std::string stats_json(const ServedProfile& profile, const ServiceStats& s) {
  const EngineCounters& c = s.engine;
  size_t last = 0;
  for (size_t i = 0; i < c.misses_histogram.size(); ++i) {
    if (c.misses_histogram[i] != 0) last = i + 1;
  }
  OrderedJson json;
  json["model"] = profile.model_name;
  json["weights"] = profile.synthetic_weights ? "synthetic" : "checkpoint";
  if (profile.synthetic_weights) json["routing"] = profile.routing_preset;
  json["strategy"] = s.engaged.strategy.empty() ? profile.strategy : s.engaged.strategy;
  json["uptime_seconds"] = s.uptime_seconds;
  json["requests"] = {{"finished", s.scheduler.requests_finished},
                      {"failed", s.scheduler.requests_failed},
                      {"cancelled", s.scheduler.requests_cancelled},
                      {"running", s.scheduler.running},
                      {"waiting", s.scheduler.waiting}};
  json["tokens"] = {{"prompt", s.scheduler.prompt_tokens}, {"generated", s.scheduler.generated_tokens}};
  json["decode"] = {{"steps", c.decode_steps},
                    {"seconds", c.decode_seconds},
                    {"tok_s", s.decode_tok_s},
                    {"ms_per_step", s.decode_ms_per_step},
                    {"gbps", s.decode_gbps},
                    {"ceiling_gbps", profile.ceiling_gbps},
                    {"ceiling_share", s.ceiling_share},
                    {"single_steps", c.single_steps},
                    {"single_tok_s", s.single_tok_s},
                    {"predicted_tok_s", profile.predicted_tok_s},
                    {"achieved_over_predicted", s.achieved_over_predicted}};
  json["prefill"] = {{"tokens", c.prefill_tokens}, {"seconds", c.prefill_seconds}};
  json["experts"] = {{"hits", c.expert_hits},    {"fetched", c.expert_fetched},
                     {"cpu", c.expert_cpu},      {"promoted", c.expert_promoted},
                     {"hit_rate", s.hit_rate},   {"fetched_share", s.fetched_share},
                     {"cpu_share", s.cpu_share}, {"bytes_fetched", c.bytes_fetched},
                     {"bytes_cpu", c.bytes_cpu}, {"link_wait_seconds", c.link_wait_seconds}};
  json["decode"]["link_wait_seconds"] = c.decode_link_wait_seconds;
  json["decode"]["cpu_wait_seconds"] = c.cpu_wait_seconds;
  json["decode"]["attention_seconds"] = c.attention_seconds;
  json["drift"] = drift_json(s.drift);
  json["look_ahead"] = {{"predicted", c.expert_predicted},
                        {"prefetched", c.expert_prefetched},
                        {"useful", c.prefetch_useful},
                        {"late", c.prefetch_late}};
  json["experts"]["misses_histogram"] =
      std::vector<uint64_t>(c.misses_histogram.begin(), c.misses_histogram.begin() + static_cast<int64_t>(last));
  json["engaged"] = {{"strategy", s.engaged.strategy},
                     {"isa", s.engaged.isa},
                     {"mechanism", s.engaged.mechanism},
                     {"threads_worked", s.engaged.threads_worked},
                     {"cache_policy", s.engaged.cache_policy},
                     {"look_ahead", s.engaged.look_ahead},
                     {"slots", s.engaged.slots},
                     {"fetched_share", s.engaged.fetched_share}};
  json["logits_hash"] = c.logits_hash;
  return json.dump(2) + "\n";
}

std::string stats_line(const ServedProfile& profile, const ServiceStats& s) {
  const EngineCounters& c = s.engine;
  const uint64_t tokens = s.scheduler.generated_tokens;
  std::string line = std::to_string(tokens) + (tokens == 1 ? " token" : " tokens");
  char text[160];
  const auto add = [&line, &text] { line += std::string(" | ") + text; };
  if (c.decode_steps > 0) {
    std::snprintf(text, sizeof text, "%.1f tok/s | %.2f ms a step | %s", s.decode_tok_s, s.decode_ms_per_step,
                  rate_text(1e9 * s.decode_gbps).c_str());
    add();
    if (profile.ceiling_gbps > 0) line += " = " + percent(s.ceiling_share) + " of ceiling";
    if (c.expert_hits + c.expert_fetched + c.expert_cpu > 0) line += " | hits " + percent(s.hit_rate);
    if (c.expert_fetched + c.expert_cpu > 0) {
      line += " | misses: " + percent(s.fetched_share) + " fetched, " + percent(s.cpu_share) + " on CPU";
    }
  } else if (c.prefill_tokens > 0) {  // the first token of an answer comes from the prompt's last step
    std::snprintf(text, sizeof text, "prefill of %llu in %.3f s", static_cast<unsigned long long>(c.prefill_tokens),
                  c.prefill_seconds);
    add();
  }
  if (profile.predicted_tok_s > 0) {
    std::snprintf(text, sizeof text, "predicted %.1f tok/s", profile.predicted_tok_s);
    add();
  }
  if (c.single_steps > 0 && profile.predicted_tok_s > 0) {
    std::snprintf(text, sizeof text, ", achieved %.2fx", s.achieved_over_predicted);
    line += text;
  }
  const DriftState drift = s.drift.summary.state;
  if (drift == DriftState::kBelow || drift == DriftState::kAbove) {
    line += std::string(" | drift: ") + std::string(drift_state_name(drift)) + " the band";
  }
  if (!s.drift.fell_back_from.empty()) line += " | fell back from " + s.drift.fell_back_from;
  if (!c.logits_hash.empty()) line += " | logits " + c.logits_hash.substr(0, 16);
  return line + (profile.synthetic_weights ? " | synthetic weights" : "");
}

}  // namespace ft
