// Carries out a WeightPlan: packs a checkpoint's tensors, or makes seeded ones, in parallel.
#include <algorithm>
#include <atomic>
#include <cstring>
#include <exception>
#include <mutex>

#include "engine/model/family.h"
#include "engine/model/weight_plan.h"
#include "engine/model/weights.h"
#include "kernels/base/clock.h"
#include "kernels/base/error.h"
#include "kernels/base/random.h"
#include "kernels/host/worker_pool.h"

namespace ft {
namespace {

constexpr int64_t kBytesPerItem = 1 << 20;  // packed bytes of one work item of a dense matrix

// Streams of random numbers that do not meet.
enum SeedStream : uint64_t { kMatrixSeeds = 1, kTableSeeds = 2, kExpertSeeds = 3 };

uint64_t part_seed(uint64_t seed, SeedStream stream, uint64_t index) {
  return mix64(mix64(seed ^ (stream << 56)) + index);
}

// f(item) for items 0 .. count - 1, taken in turn by all threads. The first exception ends the rest and is rethrown.
template <class F>
void run_items(WorkerPool& pool, int64_t count, F&& f) {
  std::atomic<int64_t> next{0};
  std::mutex mutex;
  std::exception_ptr failure;
  pool.run([&](int, int) {
    for (int64_t item = next++; item < count; item = next++) {
      try {
        f(item);
      } catch (...) {
        const std::lock_guard lock(mutex);
        if (!failure) failure = std::current_exception();
        next = count;
      }
    }
  });
  if (failure) std::rethrow_exception(failure);
}

class Loader {
 public:
  Loader(const Family& family, const WeightSource& source, WorkerPool& pool, const LoadOptions& options)
      : source_(source),
        pool_(pool),
        options_(options),
        plan_(plan_weights(family, source)),
        weights_(std::make_shared<ModelWeights>()) {
    weights_->geometry = family.geometry();
    weights_->formats = plan_.formats;
  }

  std::shared_ptr<const ModelWeights> load() {
    report(0);
    load_matrices();
    load_vectors();
    for (size_t i = 0; i < plan_.list.tables.size(); ++i) load_table(i);
    done_bytes_ = plan_.formats.dense_bytes;
    report(done_bytes_);
    load_experts();
    if (mapped_tables_) weights_->checkpoint = std::move(plan_.checkpoint);
    return weights_;
  }

 private:
  void report(int64_t bytes) {
    const int64_t total = plan_.formats.dense_bytes + plan_.formats.expert_bytes_total;
    if (options_.progress) options_.progress({source_.synthetic ? "making weights" : "packing weights", bytes, total});
  }

  std::byte* allocate(int64_t bytes) {
    weights_->storage.emplace_back(bytes, &pool_);
    return weights_->storage.back().data();
  }

  void load_matrices() {
    int64_t bytes = 0;
    for (const PackedLayout& layout : plan_.layouts) bytes += layout.bytes;
    std::byte* memory = allocate(bytes);
    struct Item {
      size_t matrix = 0;
      int64_t tile_begin = 0, tile_end = 0;
    };
    std::vector<Item> items;
    std::vector<std::byte*> places;
    for (size_t i = 0; i < plan_.layouts.size(); ++i) {
      const PackedLayout& layout = plan_.layouts[i];
      places.push_back(memory);
      memory += layout.bytes;
      const int64_t tile_bytes = layout.code_bytes_per_tile + layout.scale_bytes_per_tile;
      const int64_t step = std::max<int64_t>(1, kBytesPerItem / tile_bytes);
      for (int64_t tile = 0; tile < layout.row_tiles; tile += step) {
        items.push_back({i, tile, std::min(tile + step, layout.row_tiles)});
      }
    }
    std::vector<std::vector<float>> scratch(plan_.matrices.size());
    std::vector<RawMatrix> raw;
    for (size_t i = 0; i < plan_.matrices.size(); ++i) raw.push_back(raw_matrix(plan_.matrices[i], scratch[i]));
    run_items(pool_, static_cast<int64_t>(items.size()), [&](int64_t n) {
      const Item& item = items[static_cast<size_t>(n)];
      const PackedLayout& layout = plan_.layouts[item.matrix];
      const FormatInfo& format = format_info(layout.format);
      if (source_.synthetic) {
        const uint64_t seed = part_seed(source_.synthetic_seed, kMatrixSeeds, item.matrix);
        format.synthesize(layout, seed, item.tile_begin, item.tile_end, places[item.matrix]);
      } else {
        format.pack(raw[item.matrix], layout, item.tile_begin, item.tile_end, places[item.matrix]);
      }
    });
    for (size_t i = 0; i < places.size(); ++i) {
      weights_->matrices.push_back({plan_.layouts[i], places[i], source_.synthetic ? 1.0f : raw[i].global});
    }
  }

  void load_vectors() {
    int64_t count = 0;
    for (const VectorSpec& spec : plan_.list.vectors) count += spec.size;
    auto* memory = reinterpret_cast<float*>(allocate(count * int64_t{sizeof(float)}));
    for (size_t i = 0; i < plan_.list.vectors.size(); ++i) {
      const VectorSpec& spec = plan_.list.vectors[i];
      const std::span<float> place(memory, static_cast<size_t>(spec.size));
      memory += spec.size;
      if (source_.synthetic) {
        // Norm weights of 1 leave the normed activations as they are; biases of 0 add nothing.
        std::fill(place.begin(), place.end(), spec.names.front().ends_with(".bias") ? 0.0f : 1.0f);
      } else {
        convert_to_f32(*plan_.vectors[i], place);
      }
      weights_->vectors.push_back(place);
    }
  }

  void load_table(size_t index) {
    const TableSpec& spec = plan_.list.tables[index];
    const int64_t bytes = spec.rows * spec.cols * int64_t{sizeof(bf16)};
    EmbeddingTable table{nullptr, spec.rows, spec.cols};
    if (source_.synthetic) {
      table.rows = reinterpret_cast<const bf16*>(synthesize_table(index, bytes));
    } else {
      const std::byte* data = plan_.tables[index]->bytes.data();
      if (reinterpret_cast<uintptr_t>(data) % sizeof(bf16) == 0) {
        mapped_tables_ = true;
      } else {
        std::byte* copy = allocate(bytes);
        std::memcpy(copy, data, static_cast<size_t>(bytes));
        data = copy;
      }
      table.rows = reinterpret_cast<const bf16*>(data);
    }
    weights_->tables.push_back(table);
  }

  // Every value has a magnitude in [2^-5, 2^-4), a random sign and random mantissa: four of them per random word.
  const std::byte* synthesize_table(size_t index, int64_t bytes) {
    constexpr uint64_t kRandomBits = 0x807f807f807f807fu;
    constexpr uint64_t kExponent = 0x3d003d003d003d00u;
    const uint64_t seed = part_seed(source_.synthetic_seed, kTableSeeds, index);
    std::byte* memory = allocate(bytes);
    const int64_t items = (bytes + kBytesPerItem - 1) / kBytesPerItem;
    run_items(pool_, items, [&](int64_t item) {
      const int64_t end = std::min(bytes, (item + 1) * kBytesPerItem);
      for (int64_t at = item * kBytesPerItem; at < end; at += 8) {
        const uint64_t word = (mix64(seed + static_cast<uint64_t>(at)) & kRandomBits) | kExponent;
        std::memcpy(memory + at, &word, static_cast<size_t>(std::min<int64_t>(8, end - at)));
      }
    });
    return memory;
  }

  void load_experts() {
    const int experts = weights_->geometry.expert.experts;
    const double begin = now_seconds();
    // Not touched before: what fills a page touches it first, in parallel and where it will mostly be read, and finds
    // it in its cache, zeroed. Touching first writes all of it twice.
    weights_->bank = ExpertBank(plan_.expert_layouts, experts, options_.bank_memory);
    ExpertBank& bank = weights_->bank;
    for (int layer = 0; layer < bank.layers(); ++layer) {
      const ExpertLayout& layout = bank.layout(layer);
      run_items(pool_, experts, [&](int64_t item) {
        const int expert = static_cast<int>(item);
        if (source_.synthetic) {
          const auto key = static_cast<uint64_t>(int64_t{layer} * experts + expert);
          synthesize_expert(layout, part_seed(source_.synthetic_seed, kExpertSeeds, key), bank.blob(layer, expert));
          return;
        }
        const FoundExpert& found = plan_.experts[static_cast<size_t>(layer)][static_cast<size_t>(expert)];
        std::vector<float> gate, up, down;
        pack_expert(raw_matrix(found.gate, gate), raw_matrix(found.up, up), raw_matrix(found.down, down), layout,
                    bank.blob(layer, expert));
      });
      done_bytes_ += layout.bytes * experts;
      report(done_bytes_);
    }
    weights_->bank_seconds = now_seconds() - begin;
  }

  const WeightSource& source_;
  WorkerPool& pool_;
  const LoadOptions& options_;
  WeightPlan plan_;
  std::shared_ptr<ModelWeights> weights_;
  int64_t done_bytes_ = 0;
  bool mapped_tables_ = false;
};

}  // namespace

std::shared_ptr<const ModelWeights> load_weights(const Family& family, const WeightSource& source, WorkerPool& pool,
                                                 const LoadOptions& options) {
  return Loader(family, source, pool, options).load();
}

}  // namespace ft
