// /sys/bus/pci/devices/ADDRESS (Documentation/ABI/testing/sysfs-bus-pci). The entry is a link into the tree of
// bridges: the folder above the device's own is the port that it is plugged into.
#include <cstdlib>
#include <filesystem>
#include <system_error>

#include "kernels/host/conditions.h"
#include "kernels/host/proc_text.h"

namespace ft {
namespace {

constexpr double kMaxSpeedGts = 1024;  // PCIe 7 has 128
constexpr int kMaxWidth = 32;

// "0000:65:00.0": nothing else may become part of a path.
bool is_address(const std::string& text) {
  return !text.empty() && text.size() <= 16 && text.find_first_not_of("0123456789abcdef:.") == std::string::npos &&
         text.find("..") == std::string::npos && text[0] != '.';
}

double speed(const std::string& path) {  // "Unknown" where there is no link
  const double gts = std::strtod(read_proc_line(path).c_str(), nullptr);
  return gts > 0 && gts <= kMaxSpeedGts ? gts : 0;
}

int width(const std::string& path) {
  const int64_t lanes = read_proc_number(path).value_or(0);
  return lanes > 0 && lanes <= kMaxWidth ? static_cast<int>(lanes) : 0;  // 255 is written for "not known"
}

}  // namespace

PciLink read_pci_link(const std::string& address, const std::string& root) {
  PciLink link;
  if (!is_address(address)) return link;
  std::error_code error;
  const std::filesystem::path folder = std::filesystem::canonical(root + "/sys/bus/pci/devices/" + address, error);
  if (error) return link;
  link.speed_gts = speed(folder / "current_link_speed");
  link.max_speed_gts = speed(folder / "max_link_speed");
  link.width = width(folder / "current_link_width");
  link.max_width = width(folder / "max_link_width");
  const std::filesystem::path port = folder.parent_path();
  link.port_max_speed_gts = speed(port / "max_link_speed");
  link.port_max_width = width(port / "max_link_width");
  return link;
}

}  // namespace ft
