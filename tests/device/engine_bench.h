// device_test_engine --bench: where the time of a decode step goes.
#pragma once

#include "tests/device/harness.h"

namespace ft::device_test {

void bench_engine(Context& context);

}  // namespace ft::device_test
