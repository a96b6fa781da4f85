// What the probes of the engine's parts share: an engine to time, plans for its MoE layers, a check of its answers.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "engine/runtime/engine.h"
#include "probes/probe.h"

namespace ft {

// A hybrid engine with `threads`, and slots enough that hits come from memory when the model's experts do: 8 times the
// last-level cache (on a GPU its own), within the memory plan. Its cache is filled in order. Throws Error.
// predict: with look-ahead where the memory plan has slots for it, so that a routing trace that is recorded has
// predictions.
std::unique_ptr<Engine> make_probe_engine(const ProbeContext& context, int threads, bool predict = false);

// A second engine with look-ahead and the fewest slots that it may have, to time the predicting router beside an engine
// without. Null where an engine predicts nothing (a trace without predictions, a forced routing, which predicts for
// nothing) or where it does not fit the memory plan beside `other`.
std::unique_ptr<Engine> make_look_ahead_engine(const ProbeContext& context, const Engine& other);

// On cuda an engine like `other` that may promote one expert a layer, all slots filled; null on the host device
// and where it does not fit beside it.
std::unique_ptr<Engine> make_promoting_engine(const ProbeContext& context, const Engine& other);

// On cuda an engine like `other` whose fetches the copy engine makes; null on the host device, with a slowed link,
// where no core is left for its thread, and where it does not fit beside it.
std::unique_ptr<Engine> make_copy_engine_engine(const ProbeContext& context, const Engine& other);

// One point of the sweep: how many experts of a layer are where. Promoted ones are counted in cpu.
struct SweepPoint {
  int tokens = 1;
  int hits = 0, fetched = 0, cpu = 0, promoted = 0;

  int experts() const { return hits + fetched + cpu; }
  // NOLINTNEXTLINE(modernize-use-nullptr): clang-tidy 14 takes the 0 of the generated comparisons for a pointer
  auto operator<=>(const SweepPoint&) const = default;
};

// Makes plans for run_moe_layers: experts as the trace chose them (tokens one after the other, never one repeated),
// slots in turn, so that all of them are used.
class PlanMaker {
 public:
  // trace null: experts in turn. REQUIRES slots >= hits + fetched + promoted of every point asked for.
  PlanMaker(const ModelGeometry& geometry, std::shared_ptr<const RoutingTrace> trace, int64_t slots);
  void next_token();  // every layer sequence is another token
  void make(const SweepPoint& point, int layer, LayerPlan& plan);

 private:
  std::vector<int> choose(int layer, int count) const;

  ModelGeometry geometry_;
  std::shared_ptr<const RoutingTrace> trace_;
  int64_t slots_ = 0, next_slot_ = 0, token_ = 0;
};

// All MoE layers in sequence with plans of one point, again and again until the clock and the pool's wake-up are small
// beside it.
class LayerLoop {
 public:
  LayerLoop(Engine& engine, PlanMaker& plans, const SweepPoint& point);
  double microseconds_per_layer();  // one sample, after an untimed token
  int64_t layers_per_sample() const { return layers_ * repeats_; }

 private:
  void make_plans();
  double run_once();  // seconds

  Engine& engine_;
  PlanMaker& plans_;
  SweepPoint point_;
  int layers_ = 0;
  int64_t repeats_ = 1;
  std::vector<LayerPlan> layer_plans_;
};

// Distinct experts that a layer has on average when `batch` sequences of an engine of `max_batch` walk the trace
// together as Engine::set_routing says.
double mean_distinct(const RoutingTrace& trace, int batch, int max_batch);

// Logits hash of a fixed short sequence, prefill and decode. The same before and after a probe, or it spoilt weights.
std::string answer_hash(Engine& engine);

}  // namespace ft
