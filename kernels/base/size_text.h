// Sizes for people, in powers of 1000, with one decimal where there is a unit: "57.2 GB", "15.5 MB", "712 B".
// Gigabytes from 0.1 GB on, so that what is small does not read as 0.0 GB. What is negative is 0 B.
#pragma once

#include <cstdint>
#include <string>

namespace ft {

std::string size_text(double bytes);
inline std::string size_text(int64_t bytes) { return size_text(static_cast<double>(bytes)); }
// "14.3 of 57.2 GB": both in the unit of the whole.
std::string size_of_text(double part_bytes, double whole_bytes);
inline std::string rate_text(double bytes_per_second) { return size_text(bytes_per_second) + "/s"; }

}  // namespace ft
