// JSON with limits: the only way text that comes from outside becomes a JSON value.
//
// Two value types. Json keeps keys sorted and finds them fast: files (config.json, tensor headers, vocabularies).
// OrderedJson keeps the order of keys: requests whose tools a chat template prints, and every file that we write.
#pragma once

#include <cstddef>
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

#include "kernels/base/error.h"

namespace ft {

using Json = nlohmann::json;
using OrderedJson = nlohmann::ordered_json;

struct JsonLimits {
  size_t max_bytes = 64u << 20;
  size_t max_depth = 64;          // arrays and objects inside each other
  size_t max_values = 8'000'000;  // values and keys together
  size_t max_keys_per_object = 2'000'000;
};

inline constexpr JsonLimits kFileJsonLimits{};
// A request: OrderedJson looks keys up linearly, so objects stay small.
inline constexpr JsonLimits kRequestJsonLimits{8u << 20, 48, 500'000, 1'000};

// Throws Error(kind) that names `source` (a file name, "request body") and the byte offset. Refuses duplicate keys,
// invalid UTF-8, NUL bytes, NaN/Infinity literals, numbers beyond fp64, and anything over the limits. The limits hold
// while parsing: memory and time are bounded by them, not by the text. Messages are printable ASCII.
Json parse_json(std::string_view text, std::string_view source, const JsonLimits& limits = kFileJsonLimits,
                ErrorKind kind = ErrorKind::kFailed);
OrderedJson parse_ordered_json(std::string_view text, std::string_view source,
                               const JsonLimits& limits = kRequestJsonLimits, ErrorKind kind = ErrorKind::kFailed);

// Whole file as text. Throws Error(kFailed) naming the path when it is missing, not a regular file, unreadable or over
// max_bytes.
std::string read_text_file(const std::string& path, size_t max_bytes = kFileJsonLimits.max_bytes);
Json read_json_file(const std::string& path, const JsonLimits& limits = kFileJsonLimits);

// Writes to a temporary file in the same folder, syncs it, renames it over `path`, syncs the folder: a reader sees the
// old file or the new one. A symbolic link is followed. Throws Error(kNotWritten) and leaves no temporary file behind
// when it cannot; refuses a path that is there but is not a regular file (a folder, /dev/null).
void write_file_atomically(const std::string& path, std::string_view content);
// Throws what write_file_atomically would, before the work whose result shall be written: makes a temporary file in
// the folder and removes it. A disk that is too full for the content is still found only when writing.
void check_writable(const std::string& path);
// The same for the file that an option names: throws kUsage, so that a command line that cannot work is refused.
void check_output(std::string_view option, const std::string& path);

}  // namespace ft
