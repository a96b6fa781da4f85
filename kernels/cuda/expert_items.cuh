// What the expert kernels share: their arguments, an item as they read it, and the copy of a fetched one.
#pragma once

#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/ops.h"
#include "kernels/cuda/products.cuh"
#include "kernels/ops/activations.h"

namespace ft::cuda {

struct ExpertWork {
  TileShape shape;  // of gate and up, or of down
  int tiles_per_block = 0;
  Divider by_blocks;  // by shape.blocks
  int64_t up_offset = 0;
  int64_t down_offset = 0;
  int64_t trailer_offset = 0;
  int64_t bytes = 0;
  const ExpertItem* items = nullptr;
  const int32_t* item_begin = nullptr;
  const int32_t* item_end = nullptr;
  const int32_t* pairs = nullptr;
  int top_k = 0;
  const uint32_t* x = nullptr;  // rows that are multiplied: of tokens (gate and up) or of pairs (down)
  int packed_blocks = 0;        // of 256 k, of a row of x
  uint32_t* activated = nullptr;
  int64_t activated_words = 0;
  float* out = nullptr;
  int64_t out_stride = 0;
};

ExpertWork inline expert_work(const ExpertArgs& args, const PackedLayout& matrix, const uint32_t* x) {
  return {.shape = tile_shape(matrix),
          .tiles_per_block = 1,
          .by_blocks = Divider(matrix.blocks),
          .up_offset = args.layout.up_offset,
          .down_offset = args.layout.down_offset,
          .trailer_offset = args.layout.trailer_offset,
          .bytes = args.layout.bytes,
          .items = args.items,
          .item_begin = args.item_begin,
          .item_end = args.item_end,
          .pairs = args.pairs,
          .top_k = args.top_k,
          .x = x,
          .packed_blocks = static_cast<int>(activation_words(matrix.cols) / 128),
          .activated = args.activated,
          .activated_words = activation_words(args.layout.intermediate),
          .out = args.out,
          .out_stride = args.out_stride};
}

// Items are written by a kernel that ended before the one before this, and may be read before the wait for that one: L1
// is passed by, which could hold what was there before.
__device__ __forceinline__ ExpertItem load_item(const ExpertItem* item) {
  static_assert(sizeof(ExpertItem) == 24);
  const auto* parts = reinterpret_cast<const unsigned long long*>(item);
  const unsigned long long blob = __ldcg(parts), copy_to = __ldcg(parts + 1), pairs = __ldcg(parts + 2);
  return {.blob = reinterpret_cast<const std::byte*>(blob),
          .copy_to = reinterpret_cast<std::byte*>(copy_to),
          .pair_begin = static_cast<int32_t>(pairs),
          .pair_count = static_cast<int32_t>(pairs >> 32)};
}

__device__ __forceinline__ ExpertTrailer trailer_of(const ExpertWork& work, const std::byte* blob) {
  const float4 trailer = *reinterpret_cast<const float4*>(blob + work.trailer_offset);
  return {.gate_global = trailer.x, .up_global = trailer.y, .down_global = trailer.z};
}

// Of a fetched blob, in mapped host memory. The bank does not change during a step, so the read-only path is allowed;
// nothing is read twice, so L1 keeps none of it.
__device__ __forceinline__ uint4 load_fetched(const uint4* from) {
  uint4 v;
  asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(from));
  return v;
}
__device__ __forceinline__ uint32_t load_fetched(const uint32_t* from) {
  uint32_t v;
  asm volatile("ld.global.nc.L1::no_allocate.u32 %0, [%1];" : "=r"(v) : "l"(from));
  return v;
}

template <class Piece>
__device__ __forceinline__ void copy_pieces(const std::byte* from, std::byte* to, int64_t bytes,
                                            const BlockThread& at) {
  const auto count = static_cast<int>(bytes / static_cast<int64_t>(sizeof(Piece)));
  int i = at.thread;
  for (; i + at.threads < count; i += 2 * at.threads) {
    const Piece first = load_fetched(reinterpret_cast<const Piece*>(from) + i);
    const Piece second = load_fetched(reinterpret_cast<const Piece*>(from) + i + at.threads);
    reinterpret_cast<Piece*>(to)[i] = first;
    reinterpret_cast<Piece*>(to)[i + at.threads] = second;
  }
  if (i < count) reinterpret_cast<Piece*>(to)[i] = load_fetched(reinterpret_cast<const Piece*>(from) + i);
}

// Copies [begin, end) of a fetched blob, whole words, to its slot. Two vectors a thread are under way: a block of 256
// has 8 KiB, all blocks of a device megabytes, far more than the link's latency takes (100 KB), and no more, so that
// hits on the same multiprocessor find room in its queues.
__device__ __forceinline__ void copy_range(const ExpertItem& item, int64_t begin, int64_t end, const BlockThread& at) {
  if ((begin | end) % 16 == 0) {
    copy_pieces<uint4>(item.blob + begin, item.copy_to + begin, end - begin, at);
  } else {
    copy_pieces<uint32_t>(item.blob + begin, item.copy_to + begin, end - begin, at);
  }
}

// Tiles [tile, tile + tiles) of the matrix at `offset`; with its last tile also what lies between codes and scales, and
// between them and `end`.
__device__ __forceinline__ void copy_tiles(const ExpertItem& item, const TileShape& shape, int64_t offset, int64_t end,
                                           int tile, int tiles, const BlockThread& at) {
  const bool last = tile + tiles == shape.row_tiles;
  const int64_t codes = offset + tile * shape.code_bytes_per_tile;
  const int64_t scales = offset + shape.scales_offset + tile * shape.scale_bytes_per_tile;
  const bool no_scales = shape.scale_bytes_per_tile == 0;
  copy_range(item, codes,
             !last       ? codes + tiles * shape.code_bytes_per_tile
             : no_scales ? end
                         : offset + shape.scales_offset,
             at);
  if (!no_scales) copy_range(item, scales, last ? end : scales + tiles * shape.scale_bytes_per_tile, at);
}

// After the copies of a block: what it copied is read from the slot. The barrier makes the block's stores visible to
// its threads; the address is made anew after it, so that no load is moved before.
__device__ __forceinline__ const std::byte* copied(const ExpertItem& item) {
  __syncthreads();
  const std::byte* blob = item.copy_to;
  asm volatile("" : "+l"(blob)::"memory");
  return blob;
}

// Rows row_of(0 .. count - 1) of x into `rows`. Returns whether they are scaled. Ends with a barrier.
template <FormatId kFormat, class RowOf>
__device__ __forceinline__ bool stage_rows(const ExpertWork& work, int count, const StagedRows<kFormat>& rows,
                                           const BlockThread& at, RowOf&& row_of) {
  return stage_scaled_if_possible<kFormat>([&](auto scaled) {
    return stage_rows_as<kFormat, decltype(scaled)::value>(
        count, work.packed_blocks, 0, work.shape.blocks, rows, at, [&](int u) { return work.by_blocks.quotient(u); },
        [&](int i) { return work.x + int64_t{row_of(i)} * work.packed_blocks * 128; });
  });
}

}  // namespace ft::cuda
