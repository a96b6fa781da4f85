// Part `profile` in a build without CUDA or without CUPTI's headers.
#include "tests/bench/bench.h"

namespace ft::bench {

void run_profile(ModelCase& one) {
  one.bench.report.not_run("profile", std::string(one.geometry.name), "this build has no CUPTI, which traces a GPU");
}

}  // namespace ft::bench
