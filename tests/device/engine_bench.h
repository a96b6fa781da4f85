// device_test_engine --bench: where the time of a decode step goes; --bench look-ahead: what prefetching gains.
#pragma once

#include "tests/device/harness.h"

namespace ft::device_test {

void bench_engine(Context& context);
void bench_look_ahead(Context& context);

}  // namespace ft::device_test
