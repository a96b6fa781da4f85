// What this build's packing makes of one small expert in every format, as a hash: files of packed weights carry it, so
// that a change of a layout or of a packing routine is noticed without a version number that somebody has to raise.
#pragma once

#include <string>

namespace ft {

std::string packing_fingerprint();

}  // namespace ft
