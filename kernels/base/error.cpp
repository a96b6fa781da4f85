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

// Bytes of the control character that `text` begins with, in UTF-8; 0: none.
size_t control_bytes(std::string_view text) {
  const auto byte = static_cast<unsigned char>(text[0]);
  if (byte < 0x20 || byte == 0x7f) return 1;
  const auto in = [&](size_t at, unsigned char low, unsigned char high) {
    return at < text.size() && static_cast<unsigned char>(text[at]) >= low &&
           static_cast<unsigned char>(text[at]) <= high;
  };
  if (byte == 0xc2 && in(1, 0x80, 0x9f)) return 2;  // U+0080 to U+009F
  if (byte == 0xd8 && in(1, 0x9c, 0x9c)) return 2;  // U+061C, Arabic letter mark
  if (byte != 0xe2) return 0;
  const bool marks = in(1, 0x80, 0x80) && (in(2, 0x8e, 0x8f) || in(2, 0xa8, 0xae));  // U+200E, U+200F, U+2028 to U+202E
  const bool isolates = in(1, 0x81, 0x81) && in(2, 0xa6, 0xa9);                      // U+2066 to U+2069
  return marks || isolates ? 3 : 0;
}

}  // namespace

std::string printable(std::string_view text, std::string_view keep) {
  std::string out;
  const auto escape = [&](unsigned char byte) {
    char escaped[8];
    std::snprintf(escaped, sizeof escaped, "\\x%02x", byte);
    out += escaped;
  };
  for (size_t i = 0; i < text.size();) {
    const size_t bytes = keep.find(text[i]) == std::string_view::npos ? control_bytes(text.substr(i)) : 0;
    if (bytes == 0) out += text[i++];
    for (const size_t end = i + bytes; bytes > 0 && i < end; ++i) escape(static_cast<unsigned char>(text[i]));
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
