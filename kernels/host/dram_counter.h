// Bytes that the memory controllers move, where the kernel lets likwid count them: it takes model-specific registers,
// so root on the machine itself. Whole machine: other programs' bytes are in it too.
#pragma once

#include <memory>
#include <optional>
#include <string>

namespace ft {

class DramCounter {
 public:
  virtual ~DramCounter() = default;
  virtual bool start() = 0;
  // Bytes read since start(), with written ones where the counters do not tell them apart; none when counting failed.
  virtual std::optional<double> stop() = 0;
};

// null: why_not says why, in one line. Forks, so it must come before a GPU is used and while no other thread runs: the
// pages of pinned memory would be shared with the child.
std::unique_ptr<DramCounter> open_dram_counter(std::string& why_not);

}  // namespace ft
