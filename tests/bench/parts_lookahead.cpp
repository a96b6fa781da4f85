// Look-ahead: what copying the next layer's predicted experts ahead of need wins, and how good a real router's guesses
// are.
#include "tests/bench/bench.h"

namespace ft::bench {

void run_lookahead(ModelCase& one) {
  one.bench.report.not_run("lookahead", std::string(one.geometry.name) + " gain at 0.8 / 0.7, in T_res",
                           "this engine has no look-ahead");
}

void run_router_precision(Bench& bench, const std::string& model_path) {
  bench.report.not_run("lookahead", "router one layer ahead, " + model_path, "this engine has no look-ahead");
}

}  // namespace ft::bench
