#include "probes/expert_set.h"

#include <algorithm>
#include <cstring>
#include <variant>

#include "kernels/base/clock.h"
#include "kernels/base/error.h"
#include "probes/memory_guard.h"

namespace ft {
namespace {

constexpr int64_t kDefaultCacheBytes = int64_t{32} << 20;  // when the machine does not say
constexpr double kMemoryShare = 0.25;                      // of what is available, for copies
constexpr double kFillBytesPerSecond = 1e9;                // synthesizing and copying, at least, on one core
constexpr double kFillShare = 0.25;                        // of the budget, for filling

int64_t cache_bytes(const ProbeContext& context) {
  const int64_t bytes = context.topology->last_level_cache_bytes;
  return bytes > 0 ? bytes : kDefaultCacheBytes;
}

void shuffle(std::vector<const std::byte*>& blobs) {
  Random random(1);  // any fixed order: neighbours must not follow each other for the hardware prefetcher
  for (size_t i = blobs.size(); i > 1; --i) std::swap(blobs[i - 1], blobs[random.below(i)]);
}

// How many blobs of a cold working set are affordable; says so in the set when it is fewer.
int64_t affordable_blobs(const ProbeContext& context, ExpertSet& set) {
  const int64_t wanted = kColdFactor * cache_bytes(context) / set.layout.payload_bytes + 1;
  const double memory = kMemoryShare * static_cast<double>(memory_left(context).host);
  const double time = kFillShare * kFillBytesPerSecond * context.budget.seconds;
  const auto possible = static_cast<int64_t>(std::min(memory, time) / static_cast<double>(set.layout.bytes));
  if (possible >= wanted) return wanted;
  set.reduced = true;
  set.remarks.push_back("working set below 8x the last-level cache: memory or budget");
  return std::max<int64_t>(possible, 2);
}

ExpertSet synthetic_set(const ProbeContext& context, const ExpertShape& shape) {
  ExpertSet set;
  set.layout = expert_layout(shape.format, shape.hidden, shape.intermediate);
  const int64_t count = affordable_blobs(context, set);
  set.own = HostBuffer(count * set.layout.bytes);
  for (int64_t i = 0; i < count; ++i) {
    std::byte* blob = set.own.data() + i * set.layout.bytes;
    // Values do not change the time: one expert is made, the others are copies of it.
    if (i == 0) {
      synthesize_expert(set.layout, 1, blob);
    } else {
      std::memcpy(blob, set.own.data(), static_cast<size_t>(set.layout.bytes));
    }
    set.blobs.push_back(blob);
  }
  shuffle(set.blobs);
  return set;
}

ExpertSet bank_set(const ProbeContext& context, FormatId format) {
  const ExpertBank& bank = context.model.weights->bank;
  ExpertSet set;
  for (int layer = 0; layer < bank.layers(); ++layer) {
    if (bank.layout(layer).gate.format != format) continue;
    set.layout = bank.layout(layer);
    for (int expert = 0; expert < bank.experts(); ++expert) set.blobs.push_back(bank.blob(layer, expert));
  }
  const int64_t cache = cache_bytes(context);
  set.warm = set.payload_bytes() <= cache;
  if (set.warm)
    set.remarks.push_back("warm: the model's experts fit the last-level cache, as they do when it is served");
  if (!set.warm && set.payload_bytes() < kColdFactor * cache) {
    const std::vector<const std::byte*> originals = set.blobs;
    const auto count = std::max(affordable_blobs(context, set), static_cast<int64_t>(originals.size()));
    set.own = HostBuffer(count * set.layout.bytes);
    set.blobs.clear();
    for (int64_t i = 0; i < count; ++i) {
      std::byte* blob = set.own.data() + i * set.layout.bytes;
      std::memcpy(blob, originals[static_cast<size_t>(i) % originals.size()], static_cast<size_t>(set.layout.bytes));
      set.blobs.push_back(blob);
    }
  }
  shuffle(set.blobs);
  return set;
}

}  // namespace

std::vector<ExpertSet> make_expert_sets(const ProbeContext& context) {
  std::vector<ExpertSet> sets;
  for (const ExpertShape& shape : context.expert_shapes) sets.push_back(synthetic_set(context, shape));
  if (!sets.empty() || context.model.weights == nullptr) return sets;
  std::vector<FormatId> formats;
  for (int layer = 0; layer < context.model.weights->bank.layers(); ++layer) {
    const FormatId format = context.model.weights->bank.layout(layer).gate.format;
    if (std::find(formats.begin(), formats.end(), format) == formats.end()) formats.push_back(format);
  }
  for (const FormatId format : formats) sets.push_back(bank_set(context, format));
  return sets;
}

bool ExpertRunner::has_variant(const ExpertLayout& layout, Isa isa) {
  const int format = static_cast<int>(layout.gate.format);
  const KernelDesc* gate_up = find_kernel(OpId::kGateUp, format, isa);
  const KernelDesc* matvec = find_kernel(OpId::kMatvec, format, isa);
  return gate_up != nullptr && matvec != nullptr && gate_up->isa == isa && matvec->isa == isa;
}

ExpertRunner::ExpertRunner(const ExpertLayout& layout, Isa isa, int at_once, WorkerPool& pool)
    : layout_(layout),
      at_once_(at_once),
      pool_(pool),
      kernels_(resolve_kernels(isa)),
      marks_(pool.threads()),
      work_(kernels_, at_once, layout.intermediate, marks_, nullptr),
      x_(1, activation_words(layout.hidden)),
      y_(at_once, layout.hidden) {
  const int format = static_cast<int>(layout.gate.format);
  // Of exactly this ISA, also where CpuQuirks pass it over.
  kernels_.gate_up[format] = std::get<GateUpFn>(find_kernel(OpId::kGateUp, format, isa)->fn);
  kernels_.matvec[format] = std::get<MatvecFn>(find_kernel(OpId::kMatvec, format, isa)->fn);
  Random random(2);
  std::vector<float> input(static_cast<size_t>(layout.hidden));
  for (float& value : input) value = static_cast<float>(random.normal());
  kernels_.pack_activations({input.data(), layout.hidden, 1, layout.hidden, x_.row(0)});
  for (int row = 0; row < at_once; ++row) work_.set_row(row, x_.row(0), row, y_.row(row));
}

double ExpertRunner::run(std::span<const std::byte* const> blobs) {
  const auto at_once = static_cast<size_t>(at_once_);
  FT_CHECK(blobs.size() % at_once == 0);
  items_.clear();
  for (size_t i = 0; i < blobs.size(); ++i) {
    items_.push_back(make_expert_item(static_cast<int>(i), blobs[i], static_cast<int64_t>(i % at_once), 1));
  }
  const double start = now_seconds();
  pool_.run([&](int worker, int) {
    for (size_t i = 0; i < items_.size(); i += at_once) {
      work_.compute(layout_, std::span<const ExpertItem>(items_).subspan(i, at_once), worker, pool_);
      pool_.barrier();
    }
  });
  return now_seconds() - start;
}

std::span<const float> ExpertRunner::output() const {
  return {y_.row(at_once_ - 1), static_cast<size_t>(layout_.hidden)};
}

}  // namespace ft
