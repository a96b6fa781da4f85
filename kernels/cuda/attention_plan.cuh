// How attention_decode spreads the contexts of its tokens over blocks. Positions are read on the device, so that one
// captured launch serves every context; the choice moves work only, never a bit of the result.
//
// An item is a unit of 1, 2, 4, 8 or 16 neighbouring splits (aligned: a node of the tree of kernels/ops/attention.h) of
// one token and up to kHeads query heads of one key/value head. All splits of a unit are computed side by side by the
// 16 warps of a block: small units use many blocks, large ones need less joining at the end.
#pragma once

#include "kernels/cuda/math.cuh"
#include "kernels/cuda/ops.h"
#include "kernels/ops/attention.h"

namespace ft::cuda {

inline constexpr int kUnitKinds = 5;  // 1 << kind splits
struct Plan {
  int kind = 0;   // units of 1 << kind splits
  int items = 0;  // of all tokens
  int first_item[kMaxDecodeTokens];
  int first_split[kMaxDecodeTokens], last_split[kMaxDecodeTokens];
  int newest[kMaxDecodeTokens];  // position
  int sequence[kMaxDecodeTokens];
};

struct PlanInput {
  const int64_t* position;
  const int32_t* sequence;
  int tokens;
  int64_t window;
  int groups;         // of query heads: items of one token and unit
  int blocks;         // that share the items
  int capacity;       // items that scratch has room for; the largest units always fit
  uint32_t excluded;  // bit k: kind k is not there
};

// By one warp. A lane has tokens `lane` and `lane` + 32.
__device__ __forceinline__ void make_plan(const PlanInput& in, int lane, Plan& plan) {
  // Nanoseconds, for choosing only: of a block for one unit, and of the last block for one more part. Fitted to times
  // of all unit sizes at 1k to 128k positions on an H200, 32/4 heads of 128.
  constexpr int kUnitTime[kUnitKinds] = {5400, 7800, 11400, 18000, 27000};
  constexpr int kPartTime = 190;
  constexpr int kRounds = kMaxDecodeTokens / kWarp;
  int first[kRounds], last[kRounds];
#pragma unroll
  for (int i = 0; i < kRounds; ++i) {
    const int token = lane + i * kWarp;
    first[i] = 0, last[i] = -1;
    if (token >= in.tokens) continue;
    const int64_t length = in.position[token] + 1;
    const int64_t begin = in.window > 0 && length > in.window ? length - in.window : 0;
    plan.newest[token] = static_cast<int>(length) - 1;
    plan.sequence[token] = in.sequence[token];
    plan.first_split[token] = first[i] = static_cast<int>(begin / kAttentionSplit);
    plan.last_split[token] = last[i] = static_cast<int>((length - 1) / kAttentionSplit);
  }
  const auto units = [&](int i, int kind) { return last[i] < 0 ? 0 : (last[i] >> kind) - (first[i] >> kind) + 1; };
  const bool one = in.tokens == 1;  // lane 0 then knows all
  int best = kUnitKinds - 1;
  unsigned best_time = ~0u;
#pragma unroll
  for (int kind = kUnitKinds - 1; kind >= 0; --kind) {
    int sum = units(0, kind), most = sum;
    if (!one) {
#pragma unroll
      for (int i = 1; i < kRounds; ++i) {
        sum += units(i, kind);
        most = max(most, units(i, kind));
      }
      sum = __reduce_add_sync(kFullWarp, sum);
      most = __reduce_max_sync(kFullWarp, most);
    }
    const auto items = static_cast<unsigned>(sum * in.groups);
    if ((in.excluded >> kind & 1) != 0 || items > static_cast<unsigned>(in.capacity)) continue;
    const unsigned rounds = (items + static_cast<unsigned>(in.blocks) - 1) / static_cast<unsigned>(in.blocks);
    const unsigned time = rounds * kUnitTime[kind] + static_cast<unsigned>(most) * kPartTime;
    if (time < best_time) best_time = time, best = kind;
  }
  int before = 0;
  if (one) {
    if (lane == 0) plan.first_item[0] = 0;
    before = units(0, best) * in.groups;
  } else {
#pragma unroll
    for (int i = 0; i < kRounds; ++i) {
      const int own = units(i, best) * in.groups;
      int sum = own;  // inclusive
#pragma unroll
      for (int width = 1; width < kWarp; width *= 2) {
        const int earlier = __shfl_up_sync(kFullWarp, sum, width);
        if (lane >= width) sum += earlier;
      }
      plan.first_item[lane + i * kWarp] = before + sum - own;
      before += __shfl_sync(kFullWarp, sum, kWarp - 1);
    }
  }
  if (lane != 0) return;
  plan.items = before;
  plan.kind = best;
}

struct Item {
  int token, group;           // group of query heads
  int unit;                   // splits [unit << kind, (unit + 1) << kind)
  int first_unit, last_unit;  // of the token
  int first_item;             // of the token: item = first_item + (unit - first_unit) * groups + group
};

__device__ __forceinline__ Item item_of(const Plan& plan, int tokens, int groups, int item) {
  int token = 0;  // the last one that begins at or before `item`; every token has items
  if (tokens > 1) {
#pragma unroll
    for (int step = kMaxDecodeTokens / 2; step >= 1; step /= 2) {
      if (token + step < tokens && plan.first_item[token + step] <= item) token += step;
    }
  }
  const int own = item - plan.first_item[token];
  Item result;
  result.token = token;
  result.group = own % groups;
  result.first_unit = plan.first_split[token] >> plan.kind;
  result.last_unit = plan.last_split[token] >> plan.kind;
  result.unit = result.first_unit + own / groups;
  result.first_item = plan.first_item[token];
  return result;
}

}  // namespace ft::cuda
