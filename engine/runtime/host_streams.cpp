// Residual streams and grouped products on the host device.
#include <algorithm>
#include <array>

#include "engine/runtime/host_backend.h"
#include "kernels/base/clock.h"
#include "kernels/base/error.h"

namespace ft {
namespace {

constexpr int64_t kColumns = 512;  // of one task: 2 KiB of every stream

}  // namespace

// Tasks of a token: the rows of fn, then the streams' sum of squares.
void HostBackend::stream_products(const StreamsSpec& spec, int64_t count, int worker, int workers) {
  const RowBuffer<float>&streams = buffers_[Slot::kResidual], &out = buffers_[Slot::kStreamLogits];
  const int64_t cols = streams.width(), tasks = count + 1;
  const float* fn = parts_.weights[spec.fn].data();
  const Range part = split_range(tokens_->count() * tasks, worker, workers);
  for (int64_t task = part.begin; task < part.end;) {
    const int64_t token = task / tasks, first = task % tasks, last = std::min(tasks, first + part.end - task);
    const float* x = streams.row(token);
    const int64_t rows = std::min(last, count) - first;
    if (rows > 0) kernels_.dot_rows({x, fn + first * cols, rows, cols, out.row(token) + first});
    if (last == tasks) kernels_.dot_rows({x, x, 1, cols, out.row(token) + count});
    task += last - first;
  }
}

void HostBackend::stream_factors(const StreamsSpec& spec, int64_t token) {
  const int64_t streams = spec.streams;
  const float* logits = buffers_[Slot::kStreamLogits].row(token);
  float* factors = buffers_[Slot::kStreamFactors].row(token);
  StreamFactorsArgs args;
  args.logits = logits;
  args.squares = logits[spec.writes ? stream_logit_count(streams) : streams];
  args.cols = buffers_[Slot::kResidual].width();
  args.norm_eps = spec.norm_eps;
  args.scale = parts_.weights[spec.scale].data();
  args.base = parts_.weights[spec.base].data();
  args.streams = streams;
  args.rounds = spec.rounds;
  args.eps = spec.eps;
  args.read = factors;
  if (spec.writes) {
    args.write = factors + streams;
    args.mix = factors + 2 * streams;
  }
  kernels_.stream_factors(args);
}

void HostBackend::streams_read(const StreamsSpec& spec, Slot to) {
  if (spec.kind == StreamsKind::kGated) {
    read_gated_streams(spec, to);
    return;
  }
  const RowBuffer<float>&streams = buffers_[Slot::kResidual], &out = buffers_[to];
  const int64_t rows = tokens_->count(), width = streams.width() / spec.streams;
  const int64_t chunks = (width + kColumns - 1) / kColumns;
  FT_CHECK(spec.streams <= kMaxStreams && width * spec.streams == streams.width());
  parts_.pool.run([&](int worker, int workers) {
    stream_products(spec, spec.writes ? stream_logit_count(spec.streams) : spec.streams, worker, workers);
    parts_.pool.barrier();
    const Range tokens = split_range(rows, worker, workers);
    for (int64_t token = tokens.begin; token < tokens.end; ++token) stream_factors(spec, token);
    parts_.pool.barrier();
    const Range part = split_range(rows * chunks, worker, workers);
    for (int64_t task = part.begin; task < part.end; ++task) {
      const int64_t token = task / chunks, column = task % chunks * kColumns;
      std::array<const float*, kMaxStreams> y{};
      for (int p = 0; p < spec.streams; ++p) y[static_cast<size_t>(p)] = streams.row(token) + p * width + column;
      kernels_.merge({y.data(), buffers_[Slot::kStreamFactors].row(token), spec.streams,
                      std::min(kColumns, width - column), out.row(token) + column});
    }
  });
}

// Some columns of all streams of a token: `from` and then the old streams in order, or the old stream and then `from`.
void HostBackend::write_streams(const StreamsSpec& spec, Slot from, int64_t token, int64_t column, int64_t cols) {
  const int64_t count = spec.streams, width = buffers_[Slot::kResidual].width() / count;
  float* streams = buffers_[Slot::kResidual].row(token) + column;
  const float* factors = buffers_[Slot::kStreamFactors].row(token);
  std::array<float, kMaxStreams * kColumns> fresh;  // NOLINT(cppcoreguidelines-pro-type-member-init): written below
  if (spec.kind == StreamsKind::kGated) {
    for (int64_t q = 0; q < count; ++q) {
      const std::array<const float*, 2> y{streams + q * width, buffers_[from].row(token) + column};
      const std::array<float, 2> weights{1.0f, factors[q]};
      kernels_.merge({y.data(), weights.data(), 2, cols, fresh.data()});
      std::copy_n(fresh.data(), cols, streams + q * width);
    }
    return;
  }
  const float* write = factors + count;
  const float* mix = write + count;
  std::array<const float*, kMaxStreams + 1> y{buffers_[from].row(token) + column};
  for (int64_t p = 0; p < count; ++p) y[static_cast<size_t>(p + 1)] = streams + p * width;
  for (int64_t q = 0; q < count; ++q) {
    std::array<float, kMaxStreams + 1> weights{write[q]};
    std::copy_n(mix + q * count, count, weights.begin() + 1);
    kernels_.merge({y.data(), weights.data(), count + 1, cols, fresh.data() + q * kColumns});
  }
  for (int64_t q = 0; q < count; ++q) std::copy_n(fresh.data() + q * kColumns, cols, streams + q * width);
}

void HostBackend::streams_write(const StreamsSpec& spec, Slot from) {
  const int64_t width = buffers_[Slot::kResidual].width() / spec.streams;
  const int64_t chunks = (width + kColumns - 1) / kColumns;
  for_rows(tokens_->count() * chunks, spec.streams * kColumns, [&](int64_t begin, int64_t end) {
    for (int64_t task = begin; task < end; ++task) {
      const int64_t column = task % chunks * kColumns;
      write_streams(spec, from, task / chunks, column, std::min(kColumns, width - column));
    }
  });
}

void HostBackend::grouped_linear(Slot from, MatrixId weight, int groups, Slot to) {
  const PackedMatrix& matrix = parts_.weights[weight];
  const RowBuffer<float>&source = buffers_[from], &target = buffers_[to];
  const int64_t rows = tokens_->count(), cols = matrix.layout.cols, tiles = matrix.layout.row_tiles / groups;
  FT_CHECK(matrix.layout.rows == tiles * groups * kRowsPerTile && groups * parts_.max_tokens <= grouped_.count());
  parts_.pool.run([&](int worker, int workers) {
    const Range packed = split_range(rows * groups, worker, workers);
    for (int64_t task = packed.begin; task < packed.end; ++task) {
      const int64_t token = task / groups, group = task % groups;
      kernels_.pack_activations(
          {source.row(token) + group * cols, cols, 1, cols, grouped_.row(group * parts_.max_tokens + token)});
    }
    parts_.pool.barrier();
    const Range part = split_range(tiles * groups, worker, workers);
    if (part.begin < part.end) marks_.mark(worker);
    for (int64_t tile = part.begin; tile < part.end;) {
      const int64_t group = tile / tiles;
      MatvecArgs args;
      args.w = &matrix;
      args.x = const_cast<const uint32_t* const*>(grouped_.rows() + group * parts_.max_tokens);
      args.tokens = rows;
      args.tile_begin = tile;
      args.tile_end = tile = std::min(part.end, (group + 1) * tiles);
      args.y = target.rows();
      kernels_.matvec[static_cast<int>(matrix.layout.format)](args);
    }
  });
}

void HostBackend::compressed_attention(const CompressedAttentionSpec& spec) {
  const double begin = now_seconds();
  compressed_.run(spec, *tokens_, buffers_, ropes_[static_cast<size_t>(spec.rope)]);
  if (placement_ == MoePlacement::kDecode) attention_seconds_ += now_seconds() - begin;
}

}  // namespace ft
