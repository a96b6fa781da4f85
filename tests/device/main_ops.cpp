// device_test_ops [--scalar] [--bench] [matvec] [experts] [rows] [router] [attention] [attention_options]
// [attention_parts] [delta_net] [streams] [gated_streams] [blocks]
#include "tests/device/lists.h"

int main(int argc, char** argv) {
  using namespace ft::device_test;
  constexpr TestList kTests[] = {{"rows", test_rows},
                                 {"router", test_router},
                                 {"attention", test_attention},
                                 {"attention_options", test_attention_options},
                                 {"attention_parts", test_attention_parts},
                                 {"delta_net", test_delta_net},
                                 {"streams", test_streams},
                                 {"gated_streams", test_gated_streams},
                                 {"blocks", test_blocks},
                                 {"matvec", test_matvec},
                                 {"experts", test_experts}};
  return run_tests(argc, argv, kTests, bench_ops);
}
