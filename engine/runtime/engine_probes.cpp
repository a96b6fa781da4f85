// Cache content, and the parts of a step that probes time.
#include <algorithm>
#include <array>
#include <string>

#include "engine/runtime/engine_state.h"
#include "kernels/base/error.h"

namespace ft {

void Engine::State::require_serve(const char* what) const {
  if (serves()) return;
  throw Error(ErrorKind::kUsage, {std::string(what) + " needs serve numerics", "reference", "serve", "", "numerics"});
}

SlotTable::Content Engine::cache_content() const {
  return state_->serves() ? state_->serve->cache_content() : SlotTable::Content{};
}

void Engine::restore_cache(const SlotTable::Content& content) {
  State& s = *state_;
  s.require_serve("restoring an expert cache");
  s.serve->restore_cache(content);
}

namespace {

// Distinct experts, all ids and slots in range: two items of one expert would write the same rows.
void check_plan(const LayerPlan& plan, int experts, int64_t slots) {
  std::array<bool, kMaxExperts> seen{};
  const auto check_expert = [&](int expert) {
    FT_CHECK(expert >= 0 && expert < experts);
    FT_CHECK(!seen[static_cast<size_t>(expert)]);
    seen[static_cast<size_t>(expert)] = true;
  };
  const auto check_slot = [&](const ExpertSlot& entry) { FT_CHECK(entry.slot >= 0 && entry.slot < slots); };
  for (const ExpertSlot& hit : plan.hits) check_expert(hit.expert), check_slot(hit);
  for (const ExpertSlot& fetch : plan.fetches) check_expert(fetch.expert), check_slot(fetch);
  for (const int expert : plan.cpu) check_expert(expert);
  for (const ExpertSlot& promotion : plan.promotions) {
    FT_CHECK(promotion.expert >= 0 && promotion.expert < experts);
    check_slot(promotion);
  }
}

}  // namespace

void Engine::run_moe_layers(std::span<const LayerPlan> plans, int tokens) {
  State& s = *state_;
  s.require_serve("running MoE layers");
  const ExpertGeometry& expert = s.geometry().expert;
  FT_CHECK(tokens >= 1 && tokens <= s.config.max_batch);
  for (const LayerPlan& plan : plans) {
    FT_CHECK(plan.layer >= 0 && plan.layer < static_cast<int>(s.moe_sites.size()));
    FT_CHECK(static_cast<int64_t>(plan.hits.size() + plan.fetches.size() + plan.cpu.size()) <=
             int64_t{tokens} * expert.top_k);
    check_plan(plan, expert.experts, s.config.slots);
  }
  s.set_probe_tokens(tokens, 0);
  s.serve->moe_layers(s.tokens, plans, s.moe_sites);
}

StepBatch Engine::State::set_probe_tokens(int count, int64_t position) {
  probe_runs.clear();
  StepBatch batch;
  for (int i = 0; i < count; ++i) {
    probe_runs.push_back({i, position, std::span(probe_ids).subspan(static_cast<size_t>(i), 1), false, true});
  }
  batch.runs = probe_runs;
  batch.tokens = batch.logits_rows = count;
  batch.decode = true;
  tokens.assign(batch);
  return batch;
}

void Engine::run_dense_step(int tokens, int64_t context) {
  State& s = *state_;
  s.require_serve("running a step without misses");
  FT_CHECK(tokens >= 1 && tokens <= s.config.max_batch);
  FT_CHECK(context >= 1 && context <= s.config.max_context);
  const StepBatch batch = s.set_probe_tokens(tokens, context - 1);
  s.serve->dense_step(s.tokens, batch);
  s.last_logits_rows = tokens;
  for (int i = 0; i < tokens; ++i) s.hooks.advance(i, 1);
}

// Whether the caches have all that the token at `length` sees; a recurrent state aside.
static bool caches_reach(const ModelGeometry& geometry, int64_t reached, int64_t length) {
  const auto has_window = [](const KvLayer& layer) { return layer.window > 0; };
  const bool forgets = !geometry.compressed.empty() || std::any_of(geometry.kv.begin(), geometry.kv.end(), has_window);
  return !forgets || length == 0 || reached - length <= kRewindPositions;
}

bool Engine::can_rewind(int sequence, int64_t length) const {
  const int64_t now = sequence_length(sequence);
  FT_CHECK(length >= 0 && length <= now);
  if (geometry().state_floats > 0 && length != 0 && length != now) return false;
  return caches_reach(geometry(), state_->reached[static_cast<size_t>(sequence)], length);
}

void Engine::rewind_sequence(int sequence, int64_t length) {
  FT_CHECK(can_rewind(sequence, length));
  rewind_sequence(sequence, SequenceMark{length, {}});
}

SequenceMark Engine::mark_sequence(int sequence) const {
  const State& s = *state_;
  SequenceMark mark{sequence_length(sequence), {}};
  FT_CHECK(mark.length >= 0);
  if (geometry().state_floats == 0 || mark.length == 0) return mark;
  FT_CHECK(s.serves());
  mark.state.resize(static_cast<size_t>(geometry().state_floats));
  s.serve->read_state(sequence, mark.state);
  return mark;
}

bool Engine::can_rewind(int sequence, const SequenceMark& mark) const {
  if (mark.state.empty()) return can_rewind(sequence, mark.length);
  FT_CHECK(static_cast<int64_t>(mark.state.size()) == geometry().state_floats && state_->serves());
  FT_CHECK(mark.length > 0 && mark.length <= sequence_length(sequence));
  return caches_reach(geometry(), state_->reached[static_cast<size_t>(sequence)], mark.length);
}

void Engine::rewind_sequence(int sequence, const SequenceMark& mark) {
  State& s = *state_;
  FT_CHECK(can_rewind(sequence, mark));
  const auto index = static_cast<size_t>(sequence);
  if (mark.length == 0) s.reached[index] = 0;
  if (!mark.state.empty()) s.serve->write_state(sequence, mark.state);
  s.hooks.advance(sequence, s.lengths[index] - mark.length);
  s.lengths[index] = mark.length;
}

void Engine::copy_sequence(int sequence, const Engine& from, int from_sequence) {
  State& s = *state_;
  FT_CHECK(s.serves() && from.state_->serves() && s.model.weights == from.state_->model.weights);
  FT_CHECK(sequence_length(sequence) >= 0);
  const int64_t length = from.sequence_length(from_sequence);
  FT_CHECK(length >= 0 && length <= s.config.max_context);
  s.serve->copy_sequence(sequence, *from.state_->serve, from_sequence, length);
  s.hooks.continue_from(sequence, from.state_->hooks, from_sequence);
  s.lengths[static_cast<size_t>(sequence)] = length;
  s.reached[static_cast<size_t>(sequence)] = from.state_->reached[static_cast<size_t>(from_sequence)];
}

}  // namespace ft
