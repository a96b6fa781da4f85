#include "kernels/base/error.h"

#include <cstdio>
#include <cstdlib>

namespace ft {
namespace {

// Values and paths come from outside and can be megabytes; the other parts are our own sentences, which may list every
// field that differs.
constexpr size_t kMaxValueBytes = 300;
constexpr size_t kMaxSentenceBytes = 4096;

std::string shortened(std::string_view text, size_t max_shown_bytes) {
  return printable(text.substr(0, max_shown_bytes)) + (text.size() > max_shown_bytes ? "..." : "");
}

// A JSON path as a sentence takes it: the root alone, "$" or "FILE: $", is the whole file.
std::string readable_path(const std::string& path) {
  constexpr std::string_view kRoot = "$";
  const bool is_root = path == kRoot || path.ends_with(": $");
  return is_root ? path.substr(0, path.size() - kRoot.size()) + "the whole file" : path;
}

}  // namespace

std::string printable(std::string_view text, std::string_view keep) {
  std::string out;
  const auto escape = [&](unsigned char byte) {
    char escaped[8];
    std::snprintf(escaped, sizeof escaped, "\\x%02x", byte);
    out += escaped;
  };
  for (size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    const auto next = static_cast<unsigned char>(i + 1 < text.size() ? text[i + 1] : 0);
    if ((byte < 0x20 || byte == 0x7f) && keep.find(text[i]) == std::string_view::npos) {
      escape(byte);
    } else if (byte == 0xc2 && next >= 0x80 && next < 0xa0) {  // U+0080 to U+009F in UTF-8
      escape(byte);
      escape(next);
      ++i;
    } else {
      out += text[i];
    }
  }
  return out;
}

std::string format_error(const ErrorParts& parts) {
  std::string text = shortened(parts.what, kMaxSentenceBytes);
  if (!parts.path.empty()) text += ": " + shortened(readable_path(parts.path), kMaxValueBytes);
  if (!parts.value.empty()) {
    text += std::string(parts.path.empty() ? ":" : " is") + " '" + shortened(parts.value, kMaxValueBytes) + "'";
  }
  if (!parts.allowed.empty()) text += "; allowed: " + shortened(parts.allowed, kMaxSentenceBytes);
  if (!parts.action.empty()) text += "; " + shortened(parts.action, kMaxSentenceBytes);
  return text;
}

Error::Error(ErrorKind kind, ErrorParts parts)
    : std::runtime_error(format_error(parts)), kind_(kind), parts_(std::move(parts)) {}

void check_failed(const char* expression, const char* file, int line) {
  std::fprintf(stderr, "%s:%d: internal check failed: %s\n", file, line, expression);
  std::abort();
}

}  // namespace ft
