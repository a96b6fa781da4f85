// Attention of a decode step in one launch (ops.h attention_decode): kernels/ops/attention.h with the splits of a
// context spread over the device.
//
// A block has 16 warps and takes items (attention_plan.cuh): a unit of 16 / W splits, W warps to a split, up to eight
// query heads at once, so that every key and value is loaded and widened once for all of them. Per position and key
// head of 8 query heads, head_dim 128, a warp spends 64 fma, the least there is, and about 45 other instructions.
// - Positions, and keys and values of all positions but the newest, were there when the step began: the plan and the
//   first copies to the rings are made before the kernel before this one has ended.
// - Scores: half a warp has the 16 lanes of a canonical sum, its share of the queries in registers. Two positions and
//   all heads give 2 x kHeads sums a thread; they are added across threads by exchanging halves, which takes one
//   shuffle a sum instead of four and leaves every thread with one whole sum. Each thread holds its queries in an order
//   of its own (heads ^ lane bits), so that what it keeps and what it sends always are the same registers.
// - Values: a thread owns dimensions of some heads and walks the positions of its split in order.
// - Keys and values come through a ring of 8 KiB a warp, four rows a stage, by asynchronous copies that run ahead of
//   the arithmetic: up to 128 KiB in flight on a multiprocessor, where rate times latency is about 27 KiB.
// - Then the unit's splits are joined in shared memory, and the block that finishes a token's head group last joins the
//   units (a counter, which that block sets back to 0). Nothing waits for another block.
#include "kernels/cuda/attention_plan.cuh"
#include "kernels/cuda/attention_unit.cuh"
#include "kernels/cuda/launch.cuh"

namespace ft::cuda {
namespace {

// Items that scratch has room for beyond the largest units: small units of short contexts.
constexpr int64_t kExtraItems = 1024;

// Kinds of units (attention_plan.cuh) whose values do not stay in the rings of a team.
constexpr unsigned excluded_kinds(int dim) { return dim > 256 ? 3u << 2 : dim > 128 ? 1u << 3 : 0u; }

// Whether this block's item is the last of its token's head group to be finished. All threads, after a barrier.
__device__ __forceinline__ bool finishes(unsigned* counter, int units, bool& last) {
  if (threadIdx.x == 0) {
    // After the barrier: what the whole block wrote is visible before the count, and what others wrote after it.
    unsigned before;
    asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], 1;" : "=r"(before) : "l"(counter) : "memory");
    last = before == static_cast<unsigned>(units) - 1u;
    if (last) *counter = 0;  // for the next launch
  }
  __syncthreads();
  return last;
}

template <int kHeads, int kDim>
__global__ __launch_bounds__(kDecodeThreads, 1) void decode_kernel(const __grid_constant__ DecodeLaunch args) {
  extern __shared__ __align__(128) std::byte memory[];
  auto& shared = *reinterpret_cast<DecodeShared<kHeads, kDim>*>(memory);
  const AttentionPrepareArgs& prepare = args.decode.prepare;
  const int groups = prepare.kv_heads * args.head_groups;
  let_next_start();
  if (threadIdx.x < kWarp) {
    make_plan({prepare.position, prepare.sequence, static_cast<int>(prepare.tokens), args.decode.window, groups,
               static_cast<int>(gridDim.x), args.capacity, excluded_kinds(kDim)},
              static_cast<int>(threadIdx.x), shared.plan);
  }
  __syncthreads();
  bool waited = false;  // a block with nothing to do leaves at once; the first one has something, and waits
  int ready_token = -1, ready_group = -1;  // whose queries are in shared memory
  for (int i = static_cast<int>(blockIdx.x); i < shared.plan.items; i += static_cast<int>(gridDim.x)) {
    const Item item = item_of(shared.plan, static_cast<int>(prepare.tokens), groups, i);
    const Work work = work_of(args, shared.plan, item, kHeads);
    const int units = item.last_unit - item.first_unit + 1;
    const bool ready = item.token == ready_token && item.group == ready_group;
    ready_token = item.token, ready_group = item.group;
    const auto unit = [&]<int W>() {
      attend_splits<kHeads, kDim, W>(args, work, item.unit, ready, waited, shared);
      join_splits<kHeads, kDim, W>(args, work, item.unit, i, units == 1, shared);
    };
    switch (shared.plan.kind) {
      case 0:
        unit.template operator()<16>();
        break;
      case 1:
        unit.template operator()<8>();
        break;
      case 2:
        if constexpr (kDim <= 256) unit.template operator()<4>();
        break;
      case 3:
        if constexpr (kDim <= 128) unit.template operator()<2>();
        break;
      default:
        unit.template operator()<1>();
    }
    if (units == 1) continue;
    if (finishes(args.counters + work.token * groups + item.group, units, shared.last)) {
      join_units(args, work, item, groups, shared);
    }
    __syncthreads();
  }
}

// ---- launch

// Query heads at once: those of a key/value head, in groups that queries in registers allow.
int heads_at_once(int group, int64_t head_dim) {
  const int limit = head_dim > 256 ? 2 : head_dim > 128 ? 4 : 8;
  int heads = 2;
  while (heads < limit && heads < group) heads *= 2;
  return heads;
}

bool has_kernel(int64_t head_dim) { return head_dim == 64 || head_dim == 128 || head_dim == 256 || head_dim == 512; }

constexpr int64_t kScratchBoundary = 256;
int64_t rounded(int64_t bytes) { return ceil_div(bytes, kScratchBoundary) * kScratchBoundary; }

struct Scratch {
  int head_groups, groups;
  int64_t capacity, counters, heads, outs;  // bytes
};
Scratch scratch_of(int64_t tokens, int heads, int kv_heads, int64_t head_dim, int64_t positions) {
  const int at_once = heads_at_once(heads / kv_heads, head_dim);
  Scratch s;
  s.head_groups = static_cast<int>(ceil_div(heads / kv_heads, at_once));
  s.groups = kv_heads * s.head_groups;
  s.capacity = tokens * s.groups * (ceil_div(positions, kAttentionGroup * kAttentionSplit) + 1) + kExtraItems;
  s.counters =
      rounded(kMaxDecodeTokens * s.groups * static_cast<int64_t>(sizeof(unsigned)));  // not by `tokens`: they stay
  s.heads = rounded(s.capacity * at_once * static_cast<int64_t>(sizeof(float2)));
  s.outs = s.capacity * at_once * head_dim * static_cast<int64_t>(sizeof(float));
  return s;
}

template <int kHeads, int kDim>
void launch_decode(const AttentionDecodeArgs& decode, StreamHandle stream) {
  const AttentionPrepareArgs& prepare = decode.prepare;
  const Scratch scratch =
      scratch_of(prepare.tokens, prepare.heads, prepare.kv_heads, prepare.head_dim, prepare.kv.positions);
  DecodeLaunch args;
  args.decode = decode;
  args.head_groups = scratch.head_groups;
  args.capacity = static_cast<int>(scratch.capacity);
  args.counters = reinterpret_cast<unsigned*>(decode.scratch);
  args.heads = reinterpret_cast<float2*>(decode.scratch + scratch.counters);
  args.outs = reinterpret_cast<float2*>(decode.scratch + scratch.counters + scratch.heads);
  constexpr size_t kBytes = sizeof(DecodeShared<kHeads, kDim>);
  const auto kernel = decode_kernel<kHeads, kDim>;
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(kBytes)),
        "cannot give attention_decode its shared memory");
  int device = 0, blocks = 0;
  check(cudaGetDevice(&device), "cannot ask for the device");
  check(cudaDeviceGetAttribute(&blocks, cudaDevAttrMultiProcessorCount, device), "cannot count multiprocessors");
  cuda::launch(kernel, dim3(static_cast<unsigned>(blocks)), dim3(kDecodeThreads), kBytes, stream, args);
}

template <int kDim>
void launch_heads(const AttentionDecodeArgs& args, StreamHandle stream) {
  switch (heads_at_once(args.prepare.heads / args.prepare.kv_heads, kDim)) {
    case 2:
      return launch_decode<2, kDim>(args, stream);
    case 4:
      if constexpr (kDim <= 256) return launch_decode<4, kDim>(args, stream);
      break;
    default:
      if constexpr (kDim <= 128) return launch_decode<8, kDim>(args, stream);
  }
}

}  // namespace

int64_t attention_decode_scratch_bytes(int64_t tokens, int heads, int kv_heads, int64_t head_dim, int64_t positions) {
  if (!has_kernel(head_dim)) return kScratchBoundary;
  const Scratch s = scratch_of(tokens, heads, kv_heads, head_dim, positions);
  return s.counters + s.heads + s.outs;
}

void attention_decode(const AttentionDecodeArgs& args, StreamHandle stream) {
  const AttentionPrepareArgs& prepare = args.prepare;
  if (prepare.tokens == 0) return;
  FT_CHECK(prepare.tokens <= kMaxDecodeTokens && prepare.kv_heads > 0 && prepare.heads % prepare.kv_heads == 0);
  FT_CHECK(2 * prepare.rotary_half <= prepare.head_dim);
  FT_CHECK(reinterpret_cast<uintptr_t>(args.scratch) % kScratchBoundary == 0);
  if (!has_kernel(prepare.head_dim) || reinterpret_cast<uintptr_t>(prepare.kv.data) % 16 != 0) {
    attention_prepare(prepare, stream);
    attention({prepare.q, prepare.q_stride, prepare.tokens, prepare.heads, prepare.kv_heads, prepare.head_dim,
               args.scale, args.window, prepare.sequence, prepare.position, prepare.kv, args.out, args.out_stride,
               prepare.gated, args.sinks},
              stream);
    return;
  }
  switch (prepare.head_dim) {
    case 64:
      return launch_heads<64>(args, stream);
    case 128:
      return launch_heads<128>(args, stream);
    case 256:
      return launch_heads<256>(args, stream);
    default:
      return launch_heads<512>(args, stream);
  }
}

}  // namespace ft::cuda
