// device_test_prefill [--bench] [lists] [products] [attention] [compressed]
#include "tests/device/prefill_lists.h"

int main(int argc, char** argv) {
  using namespace ft::device_test;
  constexpr TestList kTests[] = {{"lists", test_prefill_lists},
                                 {"products", test_prefill_products},
                                 {"attention", test_prefill_attention},
                                 {"compressed", test_compressed_attend}};
  return run_tests(argc, argv, kTests, bench_prefill);
}
