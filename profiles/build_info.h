// Facts about this build, generated at every build (scripts/build_info.py): part of every profile's identity.
#pragma once

#include <string>
#include <string_view>

namespace ft {

struct BuildInfo {
  std::string_view version;    // of the project
  std::string_view compiler;   // "gcc 12.2.0"
  std::string_view code_hash;  // over the sources of kernels/ and engine/, 32 hex digits
  std::string_view commit;     // empty outside a git checkout
  bool dirty = false;          // tracked files differ from the commit

  // Slowed down on purpose, for tests of ft-tune compare (planted_gate_up_slowdown in meson_options.txt).
  bool is_planted() const { return version.find("+planted") != std::string_view::npos; }
};
BuildInfo build_info();

// "0.1.0 (gcc 12.2.0, code 0123.., commit 4567.. dirty)": what --version shows.
std::string build_text();

}  // namespace ft
