#include "kernels/base/error.h"

#include <cstdio>
#include <cstdlib>

namespace ft {
namespace {

// Values and paths come from outside and can be megabytes; the other parts are our own sentences, which may list every
// field that differs.
constexpr size_t kMaxValueBytes = 300;
constexpr size_t kMaxSentenceBytes = 4096;

// One line, so that a hostile file name or key cannot forge log lines.
std::string printable(std::string_view text, size_t max_shown_bytes) {
  std::string out;
  for (const char c : text.substr(0, max_shown_bytes)) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte == 0x7f) {
      char escaped[8];
      std::snprintf(escaped, sizeof escaped, "\\x%02x", byte);
      out += escaped;
    } else {
      out += c;
    }
  }
  if (text.size() > max_shown_bytes) out += "...";
  return out;
}

// A JSON path as a sentence takes it: the root alone, "$" or "FILE: $", is the whole file.
std::string readable_path(const std::string& path) {
  constexpr std::string_view kRoot = "$";
  const bool is_root = path == kRoot || path.ends_with(": $");
  return is_root ? path.substr(0, path.size() - kRoot.size()) + "the whole file" : path;
}

}  // namespace

std::string format_error(const ErrorParts& parts) {
  std::string text = printable(parts.what, kMaxSentenceBytes);
  if (!parts.path.empty()) text += ": " + printable(readable_path(parts.path), kMaxValueBytes);
  if (!parts.value.empty()) {
    text += std::string(parts.path.empty() ? ":" : " is") + " '" + printable(parts.value, kMaxValueBytes) + "'";
  }
  if (!parts.allowed.empty()) text += "; allowed: " + printable(parts.allowed, kMaxSentenceBytes);
  if (!parts.action.empty()) text += "; " + printable(parts.action, kMaxSentenceBytes);
  return text;
}

Error::Error(ErrorKind kind, ErrorParts parts)
    : std::runtime_error(format_error(parts)), kind_(kind), parts_(std::move(parts)) {}

void check_failed(const char* expression, const char* file, int line) {
  std::fprintf(stderr, "%s:%d: internal check failed: %s\n", file, line, expression);
  std::abort();
}

}  // namespace ft
