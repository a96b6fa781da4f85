// From values to places on an axis, with ticks at round numbers.
#pragma once

#include <string>
#include <vector>

namespace ft {

struct Tick {
  double value = 0;
  std::string label;
};

struct Scale {
  bool log = false;
  double low = 0, high = 1;  // of the axis, around the data
  std::vector<Tick> ticks;   // ascending, within [low, high]

  double fraction(double value) const;  // 0 at low, 1 at high; not cut off
};

// Ticks 1, 2 or 5 times a power of ten apart, at most `max_ticks` (>= 3) of them; the ends are ticks. Equal ends are
// widened. REQUIRES finite values, low <= high.
Scale linear_scale(double low, double high, int max_ticks);
// The axis ends a tenth beyond the data. Ticks at 1, 2 and 5 of every decade, at decades only, or at every n-th decade:
// the finest that has at most `max_ticks` (>= 3); where fewer than three of those are in sight, at round numbers (two
// to five). REQUIRES 0 < low <= high, finite.
Scale log_scale(double low, double high, int max_ticks);

// As few digits as tell it from its neighbours `step` away: "0.25", "1500", "20k", "3M".
std::string tick_label(double value, double step);

}  // namespace ft
