// Carries out a WeightPlan: packs a checkpoint's tensors, reads what was packed before, or makes seeded ones, in
// parallel.
#include <algorithm>
#include <atomic>
#include <cstring>
#include <optional>

#include "engine/model/family.h"
#include "engine/model/packed_cache.h"
#include "engine/model/run_items.h"
#include "engine/model/staged_packer.h"
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
enum SeedStream : uint64_t { kMatrixSeeds = 1, kTableSeeds = 2, kExpertSeeds = 3, kIndexSeeds = 4, kRowSeeds = 5 };

uint64_t part_seed(uint64_t seed, SeedStream stream, uint64_t index) {
  return mix64(mix64(seed ^ (stream << 56)) + index);
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
    allocate_all();
    std::optional<PackedCache> cache;
    if (plan_.checkpoint != nullptr && !source_.packed_cache.empty()) cache.emplace(source_.packed_cache, plan_);
    const PackedCache::Regions regions = {weights_->bank.bytes(), matrix_bytes_, bytes_of(globals_),
                                          bytes_of(vectors_)};
    if (cache && cache->read(regions, pool_, options_)) {
      weights_->bank_seconds = now_seconds() - bank_begin_;
    } else {
      report();
      load_matrices();
      load_vectors();
      load_experts();
      report();
      if (cache) cache->write(regions, pool_, options_);
    }
    show_dense();
    for (size_t i = 0; i < plan_.list.tables.size(); ++i) load_table(i);
    for (size_t i = 0; i < plan_.list.index_tables.size(); ++i) load_index_table(i);
    for (size_t i = 0; i < plan_.list.row_tables.size(); ++i) open_row_table(i);
    if (mapped_tables_) weights_->checkpoint = std::move(plan_.checkpoint);
    return weights_;
  }

 private:
  void report() {
    if (!options_.progress) return;
    options_.progress({source_.synthetic ? "making weights" : "packing weights", done_bytes_.load(), total_bytes_});
  }

  std::byte* allocate(int64_t bytes) {
    weights_->storage.emplace_back(bytes, &pool_);
    return weights_->storage.back().data();
  }

  // Matrices and banks are not touched before: what fills a page touches it first, in parallel and where it will mostly
  // be read, and finds it in its cache, zeroed. Touching first writes all of it twice.
  void allocate_all() {
    int64_t bytes = 0;
    for (const PackedLayout& layout : plan_.layouts) bytes += layout.bytes;
    weights_->storage.emplace_back(bytes);
    std::byte* place = weights_->storage.back().data();
    matrix_bytes_ = {place, static_cast<size_t>(bytes)};
    for (const PackedLayout& layout : plan_.layouts) {
      places_.push_back(place);
      place += layout.bytes;
    }
    globals_.assign(plan_.layouts.size(), 1.0f);
    size_t count = 0;
    for (const VectorSpec& spec : plan_.list.vectors) count += static_cast<size_t>(spec.size);
    weights_->storage.emplace_back(static_cast<int64_t>(count * sizeof(float)));
    vectors_ = {weights_->storage.back().as<float>(), count};
    bank_begin_ = now_seconds();
    weights_->bank = ExpertBank(plan_.expert_layouts, weights_->geometry.expert.experts, options_.bank_memory);
    total_bytes_ = bytes + weights_->formats.expert_bytes_total;
  }

  static std::span<std::byte> bytes_of(std::span<float> values) { return std::as_writable_bytes(values); }

  std::vector<StagedPacker> make_packers() {
    std::vector<StagedPacker> packers;
    if (source_.synthetic) return packers;
    return std::vector<StagedPacker>(static_cast<size_t>(pool_.threads()), StagedPacker(*plan_.checkpoint));
  }

  void load_matrices() {
    struct Item {
      size_t matrix = 0;
      int64_t tile_begin = 0, tile_end = 0;
    };
    std::vector<Item> items;
    for (size_t i = 0; i < plan_.layouts.size(); ++i) {
      const PackedLayout& layout = plan_.layouts[i];
      const int64_t tile_bytes = layout.code_bytes_per_tile + layout.scale_bytes_per_tile;
      const int64_t steps = std::max<int64_t>(1, kBytesPerItem / (tile_bytes * StagedPacker::kTileStep));
      const int64_t step = steps * StagedPacker::kTileStep;
      for (int64_t tile = 0; tile < layout.row_tiles; tile += step) {
        items.push_back({i, tile, std::min(tile + step, layout.row_tiles)});
      }
    }
    auto packers = make_packers();
    run_items(
        pool_, static_cast<int64_t>(items.size()),
        [&](int worker, int64_t n) {
          const Item& item = items[static_cast<size_t>(n)];
          const PackedLayout& layout = plan_.layouts[item.matrix];
          std::byte* place = places_[item.matrix];
          if (source_.synthetic) {
            const uint64_t seed = part_seed(source_.synthetic_seed, kMatrixSeeds, item.matrix);
            format_info(layout.format).synthesize(layout, seed, item.tile_begin, item.tile_end, place);
          } else {
            const float global = packers[static_cast<size_t>(worker)].pack(plan_.matrices[item.matrix], layout,
                                                                           item.tile_begin, item.tile_end, place);
            if (item.tile_begin == 0) globals_[item.matrix] = global;
          }
          done_bytes_ += (item.tile_end - item.tile_begin) * (layout.code_bytes_per_tile + layout.scale_bytes_per_tile);
        },
        [&] { report(); });
  }

  void load_vectors() {
    std::span<float> rest = vectors_;
    for (size_t i = 0; i < plan_.list.vectors.size(); ++i) {
      const VectorSpec& spec = plan_.list.vectors[i];
      const std::span<float> place = rest.first(static_cast<size_t>(spec.size));
      rest = rest.subspan(place.size());
      if (source_.synthetic) {
        std::fill(place.begin(), place.end(), spec.form.synthetic);
      } else {
        convert_to_f32(*plan_.vectors[i], place);
        if (spec.form.transpose) transpose(place, spec.form.shape.front());
        if (spec.form.add != 0 || spec.form.multiply != 1) {  // -0 + 0 would be +0
          for (float& value : place) value = (value + spec.form.add) * spec.form.multiply;
        }
      }
    }
  }

  // (rows, the rest) to (the rest, rows)
  static void transpose(std::span<float> values, int64_t rows) {
    const std::vector<float> given(values.begin(), values.end());
    const int64_t cols = static_cast<int64_t>(given.size()) / rows;
    for (size_t i = 0; i < given.size(); ++i) {
      const auto row = static_cast<int64_t>(i) / cols, col = static_cast<int64_t>(i) % cols;
      values[static_cast<size_t>(col * rows + row)] = given[i];
    }
  }

  // Where the filled memory's matrices and vectors are.
  void show_dense() {
    for (size_t i = 0; i < places_.size(); ++i) {
      weights_->matrices.push_back({plan_.layouts[i], places_[i], globals_[i]});
    }
    std::span<const float> rest = vectors_;
    for (const VectorSpec& spec : plan_.list.vectors) {
      weights_->vectors.push_back(rest.first(static_cast<size_t>(spec.size)));
      rest = rest.subspan(static_cast<size_t>(spec.size));
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
    const auto fill = [&](int, int64_t item) {
      const int64_t end = std::min(bytes, (item + 1) * kBytesPerItem);
      for (int64_t at = item * kBytesPerItem; at < end; at += 8) {
        const uint64_t word = (mix64(seed + static_cast<uint64_t>(at)) & kRandomBits) | kExponent;
        std::memcpy(memory + at, &word, static_cast<size_t>(std::min<int64_t>(8, end - at)));
      }
    };
    run_items(pool_, items, fill, [] {});
    return memory;
  }

  // Small enough for one thread: some MB.
  void load_index_table(size_t index) {
    const IndexTableSpec& spec = plan_.list.index_tables[index];
    const int64_t count = spec.rows * spec.cols;
    auto* rows = reinterpret_cast<int32_t*>(allocate(count * int64_t{sizeof(int32_t)}));
    if (source_.synthetic) {
      Random random(part_seed(source_.synthetic_seed, kIndexSeeds, index));
      for (int64_t row = 0; row < spec.rows; ++row) draw_distinct(random, spec, rows + row * spec.cols);
    } else {
      const TensorView& view = *plan_.index_tables[index];
      for (int64_t i = 0; i < count; ++i) {
        int64_t value = 0;
        std::memcpy(&value, view.bytes.data() + i * int64_t{sizeof value}, sizeof value);
        if (value < 0 || value >= spec.limit) refuse_index(spec, i / spec.cols, value);
        rows[i] = static_cast<int32_t>(value);
      }
    }
    weights_->index_tables.push_back({rows, spec.rows, spec.cols});
  }

  void open_row_table(size_t index) {
    const RowTableSpec& spec = plan_.list.row_tables[index];
    if (source_.synthetic) {
      weights_->row_tables.emplace_back(part_seed(source_.synthetic_seed, kRowSeeds, index), spec.rows, spec.cols);
      return;
    }
    weights_->row_tables.emplace_back(*plan_.checkpoint, std::move(plan_.row_tables[index]), spec.rows, spec.cols);
    mapped_tables_ = true;
  }

  static void draw_distinct(Random& random, const IndexTableSpec& spec, int32_t* row) {
    for (int64_t i = 0; i < spec.cols;) {
      row[i] = static_cast<int32_t>(random.next() % static_cast<uint64_t>(spec.limit));
      if (std::find(row, row + i, row[i]) == row + i) ++i;
    }
  }

  [[noreturn]] void refuse_index(const IndexTableSpec& spec, int64_t row, int64_t value) const {
    const auto here = [&](const std::string& name) { return plan_.checkpoint->find(name) != nullptr; };
    throw Error(ErrorKind::kFailed,
                {.what = "a table of the checkpoint holds an index out of range, in row " + std::to_string(row),
                 .value = std::to_string(value),
                 .allowed = "0 to " + std::to_string(spec.limit - 1),
                 .path = *std::find_if(spec.names.begin(), spec.names.end(), here)});
  }

  void load_experts() {
    const int experts = weights_->geometry.expert.experts;
    ExpertBank& bank = weights_->bank;
    auto packers = make_packers();
    run_items(
        pool_, int64_t{bank.layers()} * experts,
        [&](int worker, int64_t item) {
          const auto layer = static_cast<int>(item / experts), expert = static_cast<int>(item % experts);
          const ExpertLayout& layout = bank.layout(layer);
          if (source_.synthetic) {
            const uint64_t seed = part_seed(source_.synthetic_seed, kExpertSeeds, static_cast<uint64_t>(item));
            synthesize_expert(layout, seed, bank.blob(layer, expert));
          } else {
            const FoundExpert& found = plan_.experts[static_cast<size_t>(layer)][static_cast<size_t>(expert)];
            packers[static_cast<size_t>(worker)].pack(found, layout, bank.blob(layer, expert));
          }
          done_bytes_ += layout.bytes;
        },
        [&] { report(); });
    weights_->bank_seconds = now_seconds() - bank_begin_;
    done_bytes_ = total_bytes_;
  }

  const WeightSource& source_;
  WorkerPool& pool_;
  const LoadOptions& options_;
  WeightPlan plan_;
  std::shared_ptr<ModelWeights> weights_;
  std::span<std::byte> matrix_bytes_;
  std::vector<std::byte*> places_;  // of the matrices
  std::vector<float> globals_;
  std::span<float> vectors_;  // all of them, one after another
  double bank_begin_ = 0;
  std::atomic<int64_t> done_bytes_{0};
  int64_t total_bytes_ = 0;  // packed
  bool mapped_tables_ = false;
};

}  // namespace

std::shared_ptr<const ModelWeights> load_weights(const Family& family, const WeightSource& source, WorkerPool& pool,
                                                 const LoadOptions& options) {
  return Loader(family, source, pool, options).load();
}

}  // namespace ft
