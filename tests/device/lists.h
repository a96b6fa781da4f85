// The test lists of device_test_ops, one a file.
#pragma once

#include "tests/device/harness.h"

namespace ft::device_test {

void test_matvec(Context& context);
void test_experts(Context& context);
void test_rows(Context& context);
void test_router(Context& context);
void test_attention(Context& context);
void test_attention_options(Context& context);
void test_attention_parts(Context& context);
void test_delta_net(Context& context);
void test_streams(Context& context);
void test_gated_streams(Context& context);
void test_blocks(Context& context);
void bench_ops(Context& context);

}  // namespace ft::device_test
