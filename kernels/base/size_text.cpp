#include "kernels/base/size_text.h"

#include <cstdio>

namespace ft {
namespace {

struct SizeUnit {
  double bytes;
  const char* name;
  int decimals;
};

// By what is printed: 999.96 KB is 1.0 MB.
SizeUnit unit_of(double bytes) {
  if (bytes >= 99.95e6) return {1e9, "GB", 1};
  if (bytes >= 999.95e3) return {1e6, "MB", 1};
  if (bytes >= 999.5) return {1e3, "KB", 1};
  return {1, "B", 0};
}

std::string number(double bytes, const SizeUnit& unit) {
  char text[32];
  std::snprintf(text, sizeof text, "%.*f", unit.decimals, bytes > 0 ? bytes / unit.bytes : 0.0);
  return text;
}

}  // namespace

std::string size_text(double bytes) {
  const SizeUnit unit = unit_of(bytes);
  return number(bytes, unit) + " " + unit.name;
}

std::string size_of_text(double part_bytes, double whole_bytes) {
  const SizeUnit unit = unit_of(whole_bytes);
  return number(part_bytes, unit) + " of " + number(whole_bytes, unit) + " " + unit.name;
}

}  // namespace ft
