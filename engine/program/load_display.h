// How far loading is, on stderr and only when --log-level shows information: on a terminal one line that is updated, in
// a log a line every kLogSeconds; at the end of each stage what it took.
#pragma once

#include <string>

#include "engine/model/weights.h"

namespace ft {

// "packing weights:  42 %, 24.0 of 57.2 GB, 5.3 GB/s, 6 s left", after `seconds` of the stage. Without rate and time
// left while there is nothing to judge them by, without bytes when there are none.
std::string load_line(const LoadProgress& progress, double seconds);
// "packing weights: 57.2 GB in 10.8 s, 5.3 GB/s".
std::string load_summary(const LoadProgress& progress, double seconds);

class LoadDisplay {
 public:
  static constexpr double kTerminalSeconds = 0.1;
  static constexpr double kLogSeconds = 5;

  LoadDisplay();
  ~LoadDisplay();  // ends a line that is still open
  LoadDisplay(const LoadDisplay&) = delete;
  LoadDisplay& operator=(const LoadDisplay&) = delete;

  void show(const LoadProgress& progress);
  void end_line();  // before something else is printed

 private:
  bool terminal_;
  bool open_ = false;  // a line on the terminal
  bool done_ = false;  // the stage's summary was printed
  std::string stage_;
  double stage_begin_ = 0;
  double shown_at_ = 0;
};

}  // namespace ft
