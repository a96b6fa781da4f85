// What the watch of a service found, as lines for people.
#pragma once

#include <string>

#include "engine/runtime/drift.h"

namespace ft {

// "drift: decodes at 0.52 of the expected rate (band 0.90 to 1.10): 19.2 ms a step in place of 10.0, over 214 steps;
// hit rate moved: 61 % in place of 80 %, +4.0 ms a step", or that it is back inside the band.
std::string drift_text(const DriftEvent& event);
// That steps like the last one are not judged, and what is.
std::string drift_outside_text(const DriftSummary& summary, const ExpectedSteps& expected);

}  // namespace ft
