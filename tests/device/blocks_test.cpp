// Attention to chosen blocks of tokens, but for the attention itself. Checked against: the CPU's head_norm_rope, merge
// and index_scores, and a sort of these scores: index queries, entries by what is chosen of them, and the rows that are
// gathered, bit for bit, over steps of one token and of several in two sequences.
#include "kernels/cuda/blocks.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "tests/device/lists.h"

namespace ft::device_test {
namespace {

using test::Values;

constexpr int kSequences = 2;
constexpr float kEps = 1e-6f;

struct Shape {
  int ratio, top_k, heads, dim, half;
  int64_t row_elements;  // of the cache
  int64_t positions;
  std::string what() const {
    return std::to_string(top_k) + " blocks of " + std::to_string(ratio) + ", " + std::to_string(heads) + " heads of " +
           std::to_string(dim);
  }
};

class BlockLayer {
 public:
  BlockLayer(Context& context, const Shape& shape, bool coarse, Random& random)
      : context_(context),
        shape_(shape),
        coarse_(coarse),
        norms_(random_floats(random, Values::kNormal, 2 * shape.dim)),
        angles_(random_floats(random, Values::kNormal, 2 * shape.positions * shape.half)),
        cache_(kSequences * shape.positions * shape.row_elements),
        weights_(std::vector<float>(static_cast<size_t>(shape.heads),
                                    static_cast<float>(1.0 / std::sqrt(static_cast<double>(shape.dim))))),
        device_norms_(context, norms_),
        device_angles_(context, angles_),
        device_weights_(context, weights_),
        device_rows_(context, kSequences * (shape.positions / shape.ratio) * shape.dim),
        device_open_(context, kSequences * int64_t{shape.ratio + kRing} * shape.dim),
        device_cache_(context, filled(cache_, random)) {
    args_.step.layer = layer();
    args_.step.max_positions = shape.positions;
    args_.step.norm_eps = kEps;
    args_.step.cos = device_angles_.data();
    args_.step.sin = args_.step.cos + shape.positions * shape.half;
    args_.step.half = shape.half;
    args_.step.index_weight = {device_weights_.data(), 0};
    args_.step.index_norm = device_norms_.data();
    args_.query_norm = args_.step.index_norm + shape.dim;
    args_.kv = {device_cache_.data(), shape.positions, 0};
    args_.row_elements = shape.row_elements;
  }

  void step(std::vector<cuda::SequenceRun> runs, bool as_runs, Random& random) {
    std::vector<int32_t> sequence;
    std::vector<int64_t> position;
    for (cuda::SequenceRun& run : runs) {
      run.token = static_cast<int32_t>(position.size());
      for (int i = 0; i < run.count; ++i) sequence.push_back(run.sequence), position.push_back(run.position + i);
    }
    const auto tokens = static_cast<int64_t>(position.size()), stride = int64_t{shape_.heads + 1} * shape_.dim + 3;
    HostArray<float> q = random_floats(random, Values::kNormal, tokens * stride);
    if (coarse_) {
      for (int64_t i = 0; i < q.size(); ++i) q[i] = std::round(q[i]);  // many equal rows, and so equal scores
    }
    const DeviceArray<float> device_q(context_, q);
    const DeviceArray<cuda::SequenceRun> device_runs(context_, runs);
    const DeviceArray<int32_t> device_sequence(context_, sequence);
    const DeviceArray<int64_t> device_position(context_, position);
    args_.step.tokens = tokens;
    args_.step.runs = as_runs ? device_runs.data() : nullptr;
    args_.step.run_count = as_runs ? static_cast<int>(runs.size()) : 0;
    args_.step.sequence = device_sequence.data();
    args_.step.position = device_position.data();
    args_.step.index_q = {device_q.data(), stride};
    cuda::blocks_prepare(args_, context_.stream.handle());
    for (int64_t t = 0; t < tokens; ++t) {
      on_cpu(sequence[static_cast<size_t>(t)], position[static_cast<size_t>(t)], q.data() + t * stride);
    }
    check_same(context_, "index of blocks: queries", shape_.what(), device_q, q);
    constexpr int64_t kGroup = 3;
    for (int64_t first = 0; first < tokens; first += kGroup) {
      check_group(first, std::min(kGroup, tokens - first), sequence, position, q, stride);
    }
    if (as_runs) cuda::blocks_keep(args_, context_.stream.handle());
    context_.stream.synchronize();  // before the step's arrays go
    const bool intact = device_rows_.intact() && device_open_.intact() && device_cache_.intact();
    context_.report.check("index of blocks: gathered", intact ? "" : shape_.what() + ": wrote outside an array");
  }

 private:
  static constexpr int kRing = 64;

  static const HostArray<bf16>& filled(HostArray<bf16>& cache, Random& random) {
    for (int64_t i = 0; i < cache.size(); ++i) cache[i] = to_bf16(static_cast<float>(random.normal()));
    return cache;
  }

  cuda::CompressedLayerView layer() const {
    cuda::CompressedLayerView view;
    view.ratio = shape_.ratio;
    view.index_dim = shape_.dim, view.index_heads = shape_.heads, view.index_top_k = shape_.top_k;
    view.blocks = true;
    view.ring_rows = kRing;
    view.entries = static_cast<int>(shape_.positions / shape_.ratio);
    view.open_ring = shape_.ratio + kRing;
    view.rows = device_rows_.data();
    view.sequence_elements = int64_t{view.entries} * shape_.dim;
    view.open = device_open_.data();
    view.sequence_floats = int64_t{view.open_ring} * shape_.dim;
    return view;
  }

  void norm_rotate(float* x, const float* norm, int64_t position) const {
    const float* cos = angles_.data() + position * shape_.half;
    context_.cpu.head_norm_rope({x, 1, shape_.dim, norm, kEps, cos, cos + shape_.positions * shape_.half, shape_.half});
  }

  // A token's queries in place; its index row is kept, and closes a block.
  void on_cpu(int sequence, int64_t position, float* q) {
    const int64_t dim = shape_.dim;
    std::vector<float>& rows = index_rows_[sequence];
    rows.resize(static_cast<size_t>(position * dim));
    rows.insert(rows.end(), q + shape_.heads * dim, q + (shape_.heads + 1) * dim);
    for (int64_t h = 0; h < shape_.heads; ++h) {
      norm_rotate(q + h * dim, norms_.data() + dim, position);
      for (int64_t i = 0; i < dim; ++i) q[h * dim + i] = round_to_bf16(q[h * dim + i]);
    }
    if ((position + 1) % shape_.ratio != 0) return;
    const int64_t entry = position / shape_.ratio;
    std::vector<const float*> of_block;
    for (int64_t t = entry * shape_.ratio; t <= position; ++t) of_block.push_back(rows.data() + t * dim);
    const std::vector<float> shares(of_block.size(), 1.0f / static_cast<float>(shape_.ratio));
    std::vector<float> x(static_cast<size_t>(dim));
    context_.cpu.merge({of_block.data(), shares.data(), shape_.ratio, dim, x.data()});
    norm_rotate(x.data(), norms_.data(), entry * shape_.ratio);
    std::vector<bf16>& entries = entries_[sequence];
    entries.resize(static_cast<size_t>(entry * dim));
    for (const float value : x) entries.push_back(to_bf16(value));
  }

  // Positions that a token attends to, in order.
  std::vector<int64_t> attended(int sequence, int64_t position, const float* q) const {
    const int64_t blocks = (position + 1) / shape_.ratio, ratio = shape_.ratio;
    std::vector<int64_t> result;
    if (blocks <= shape_.top_k) {
      result.resize(static_cast<size_t>(position + 1));
      std::iota(result.begin(), result.end(), 0);
      return result;
    }
    std::vector<float> scores(static_cast<size_t>(blocks));
    context_.cpu.index_scores(
        {q, weights_.data(), shape_.heads, shape_.dim, entries_[sequence].data(), blocks, scores.data()});
    std::vector<int64_t> order(static_cast<size_t>(blocks));
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
      return scores[static_cast<size_t>(a)] > scores[static_cast<size_t>(b)];
    });
    std::sort(order.begin(), order.begin() + shape_.top_k);
    for (int64_t i = 0; i < shape_.top_k * ratio; ++i) {
      result.push_back(order[static_cast<size_t>(i / ratio)] * ratio + i % ratio);
    }
    for (int64_t t = blocks * ratio; t <= position; ++t) result.push_back(t);
    return result;
  }

  void check_group(int64_t first, int64_t count, const std::vector<int32_t>& sequence,
                   const std::vector<int64_t>& position, const HostArray<float>& q, int64_t stride) {
    const int64_t width = shape_.row_elements, most = args_.step.layer.attended(shape_.positions);
    HostArray<bf16> expected = poisoned<bf16>(count * most * width);
    HostArray<int32_t> lengths(count), places(count), got(count);
    for (int64_t place = 0; place < count; ++place) {
      const auto token = static_cast<size_t>(first + place);
      const std::vector<int64_t> all = attended(sequence[token], position[token], q.data() + (first + place) * stride);
      for (size_t i = 0; i < all.size(); ++i) {
        std::copy_n(cache_.data() + (sequence[token] * shape_.positions + all[i]) * width, width,
                    expected.data() + (place * most + static_cast<int64_t>(i)) * width);
      }
      lengths[place] = static_cast<int32_t>(all.size());
      places[place] = static_cast<int32_t>(place);
    }
    const DeviceArray<float> scores(context_, count * args_.step.layer.entries);
    const DeviceArray<int32_t> chosen(context_, count * shape_.top_k), device_places(context_, count);
    const DeviceArray<int64_t> last(context_, count);
    const DeviceArray<bf16> gathered(context_, expected.size());
    cuda::CompressedGroup group{first,           count, scores.data(),        chosen.data(),
                                gathered.data(), most,  device_places.data(), last.data()};
    cuda::compressed_choose(args_.step, group, context_.stream.handle());
    cuda::blocks_gather(args_, group, context_.stream.handle());
    const std::string what = shape_.what() + (coarse_ ? ", ties" : "") + ", position " +
                             std::to_string(position[static_cast<size_t>(first)]);
    check_same(context_, "index of blocks: gathered", what, gathered, expected);
    check_same(context_, "index of blocks: places", what, device_places, places);
    const HostArray<int64_t> ends = last.read();
    for (int64_t place = 0; place < count; ++place) got[place] = static_cast<int32_t>(ends[place] + 1);
    context_.report.check("index of blocks: places", difference(got, lengths));
  }

  Context& context_;
  Shape shape_;
  bool coarse_;
  HostArray<float> norms_, angles_;  // norms: of entries, then of queries; angles: cos, then sin
  HostArray<bf16> cache_;
  std::vector<float> weights_;
  std::vector<float> index_rows_[kSequences];
  std::vector<bf16> entries_[kSequences];
  DeviceArray<float> device_norms_, device_angles_, device_weights_;
  DeviceArray<bf16> device_rows_;
  DeviceArray<float> device_open_;
  DeviceArray<bf16> device_cache_;
  cuda::BlocksArgs args_;
};

void check_blocks(Context& context, const Shape& shape, bool coarse, Random& random) {
  BlockLayer layer(context, shape, coarse, random);
  // Up to one token before a token chooses, then by steps over the boundary and the next blocks'.
  const int32_t before = (shape.top_k + 1) * shape.ratio - 2;
  int64_t at[kSequences] = {before, 0};
  if (before > 0) layer.step({{0, 0, before, 0}}, true, random);
  const auto decode = [&](bool as_runs) {
    layer.step({{at[1], 0, 1, 1}, {at[0], 0, 1, 0}}, as_runs, random);
    for (int64_t& position : at) ++position;
  };
  for (int i = 0; i < 2 * shape.ratio + 2; ++i) decode(i % 4 == 2);
  // A run longer than the ring of open rows, beside a short one; then steps again.
  const int32_t longer = shape.ratio + 64 + 3;
  layer.step({{at[0], 0, longer, 0}, {at[1], 0, 2, 1}}, true, random);
  at[0] += longer, at[1] += 2;
  for (int i = 0; i < shape.ratio + 1; ++i) decode(false);
  at[1] = 0;  // another sequence in the same place
  for (int i = 0; i < shape.ratio + 1; ++i) decode(false);
}

}  // namespace

void test_blocks(Context& context) {
  Random random(73);
  for (const bool coarse : {false, true}) {
    for (const Shape& shape : {Shape{4, 6, 3, 16, 4, 64, 150}, Shape{1, 1, 1, 8, 4, 12, 100},
                               Shape{16, 8, 9, 128, 32, 256, 400}, Shape{3, 20, 2, 200, 5, 7, 200}}) {
      check_blocks(context, shape, coarse, random);
    }
  }
}

}  // namespace ft::device_test
