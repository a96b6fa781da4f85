// Checked against: the scalar kernels over whole matrices in one thread. Every row of every expert must have their bits
// whatever the number of workers, whichever of them took a tile, also when workers come late and others help.
#include "engine/runtime/expert_work.h"

#include <doctest/doctest.h>

#include <chrono>
#include <cstring>
#include <thread>
#include <vector>

#include "kernels/base/random.h"
#include "kernels/host/worker_pool.h"
#include "kernels/ops/activations.h"

namespace {

constexpr int64_t kHidden = 272, kIntermediate = 160;  // 40 and 68 tiles, short blocks in both
constexpr int kRowsOfExpert[] = {1, 3, 1, 6};
constexpr int kRows = 11;

std::vector<uint32_t> packed_row(uint64_t seed) {
  std::vector<float> x(kHidden);
  ft::Random random(seed);
  for (float& value : x) value = static_cast<float>(random.normal());
  std::vector<uint32_t> words(static_cast<size_t>(ft::activation_words(kHidden)));
  ft::resolve_kernels(ft::Isa::kScalar).pack_activations({x.data(), kHidden, 1, kHidden, words.data()});
  return words;
}

struct Layer {
  ft::ExpertLayout layout;
  std::vector<std::vector<std::byte>> blobs;
  std::vector<std::vector<uint32_t>> x;
  std::vector<ft::ExpertItem> items;
};

Layer make_layer(ft::FormatId format) {
  Layer layer{ft::expert_layout(format, kHidden, kIntermediate), {}, {}, {}};
  for (uint64_t row = 0; row < kRows; ++row) layer.x.push_back(packed_row(row));
  int64_t row = 0;
  for (const int rows : kRowsOfExpert) {
    const auto expert = static_cast<int>(layer.blobs.size());
    layer.blobs.emplace_back(static_cast<size_t>(layer.layout.bytes));
    ft::synthesize_expert(layer.layout, static_cast<uint64_t>(expert), layer.blobs.back().data());
    layer.items.push_back(ft::make_expert_item(expert, layer.blobs.back().data(), row, rows));
    row += rows;
  }
  return layer;
}

using Outputs = std::vector<std::vector<float>>;

Outputs expected(const Layer& layer) {
  const ft::KernelTable scalar = ft::resolve_kernels(ft::Isa::kScalar);
  const auto format = static_cast<size_t>(layer.layout.gate.format);
  Outputs y(kRows, std::vector<float>(kHidden));
  for (const ft::ExpertItem& item : layer.items) {
    for (int64_t row = item.row_begin; row < item.row_begin + item.row_count; ++row) {
      std::vector<uint32_t> activated(static_cast<size_t>(ft::activation_words(kIntermediate)));
      const uint32_t* x = layer.x[static_cast<size_t>(row)].data();
      uint32_t* a = activated.data();
      scalar.gate_up[format]({&layer.layout, item.blob, &x, 1, 0, layer.layout.gate.row_tiles, &a});
      const ft::PackedMatrix down = ft::expert_down(layer.layout, item.blob);
      const uint32_t* a_in = a;
      float* out = y[static_cast<size_t>(row)].data();
      scalar.matvec[format]({&down, &a_in, 1, 0, down.layout.row_tiles, &out});
    }
  }
  return y;
}

}  // namespace

TEST_CASE("every tile is computed, with the scalar kernels' bits, by any number of workers, punctual or late") {
  const ft::KernelTable kernels = ft::resolve_kernels(ft::active_isa());
  for (const ft::FormatId format : {ft::FormatId::kBf16, ft::FormatId::kNvfp4}) {
    const Layer layer = make_layer(format);
    const Outputs right = expected(layer);
    for (const int threads : {1, 2, 3, 7, 64}) {
      ft::WorkerPool pool({.threads = threads, .cpus = {}});
      ft::WorkerMarks marks(threads);
      ft::ExpertWork work(kernels, kRows, kIntermediate, marks, nullptr);
      for (int late = -1; late < 3; ++late) {
        INFO(ft::format_info(format).name, " threads ", threads, " late ", late);
        Outputs y(kRows, std::vector<float>(kHidden, -1.0f));
        for (int row = 0; row < kRows; ++row) {
          const auto index = static_cast<size_t>(row);
          work.set_row(row, layer.x[index].data(), row, y[index].data());
        }
        pool.run([&](int worker, int) {
          if (worker == late) std::this_thread::sleep_for(std::chrono::milliseconds(2));
          work.compute(layer.layout, layer.items, worker, pool);
        });
        for (size_t row = 0; row < kRows; ++row) {
          // NOLINTNEXTLINE(bugprone-suspicious-memory-comparison): the same bits are promised
          CHECK(std::memcmp(y[row].data(), right[row].data(), kHidden * sizeof(float)) == 0);
        }
      }
    }
  }
}
