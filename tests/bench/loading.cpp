// Loading a checkpoint from a warm page cache.
#include "tests/bench/bench.h"

namespace ft::bench {

void run_loading(Bench& bench) {
  bench.report.not_run("loading", "checkpoint to banks from a warm page cache", "not written yet");
}

}  // namespace ft::bench
