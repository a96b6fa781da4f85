// The pairs of a chunk by expert, made on the device by prefill_group, for the tests and the bench of prefill.
#pragma once

#include <algorithm>

#include "kernels/cuda/prefill.h"
#include "tests/device/harness.h"

namespace ft::device_test {

void test_prefill_lists(Context& context);
void test_prefill_products(Context& context);
void test_prefill_attention(Context& context);
void test_compressed_attend(Context& context);
void bench_prefill(Context& context);

struct PrefillListArrays {
  HostArray<int32_t> expert_of_item;
  DeviceArray<int32_t> counts, order, tile_begin;
  DeviceArray<cuda::PrefillTile> tiles;
  DeviceArray<int32_t> device_experts, device_ids;
  int experts;

  PrefillListArrays(Context& context, const HostArray<int32_t>& ids, int expert_count)
      : expert_of_item(turned(expert_count)),
        counts(context, expert_count),
        order(context, ids.size()),
        tile_begin(context, expert_count + 1),
        tiles(context, cuda::max_prefill_tiles(ids.size(), expert_count)),
        device_experts(context, expert_of_item),
        device_ids(context, ids),
        experts(expert_count) {
    group(context);
  }
  cuda::PrefillLists view() const { return {counts.data(), order.data(), tiles.data(), tile_begin.data()}; }
  void group(Context& context) const {
    cuda::prefill_group({device_ids.data(), device_ids.size(), device_experts.data(), experts, view()},
                        context.stream.handle());
  }
  bool intact() const { return counts.intact() && order.intact() && tile_begin.intact() && tiles.intact(); }

 private:
  // A permutation that is not the identity: odd experts, then even ones.
  static HostArray<int32_t> turned(int count) {
    HostArray<int32_t> experts_in_order(count);
    for (int i = 0; i < count; ++i) experts_in_order[i] = i;
    std::stable_partition(experts_in_order.data(), experts_in_order.data() + count,
                          [](int32_t e) { return e % 2 == 1; });
    return experts_in_order;
  }
};

}  // namespace ft::device_test
