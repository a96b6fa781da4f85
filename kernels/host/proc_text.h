// Text of /proc and /sys: small files of numbers whose forms differ by kernel and by container. What is missing, too
// large or in another form counts as not known; nothing here throws or trusts a number.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace ft {

inline constexpr size_t kMaxProcTextBytes = 16u << 20;  // mountinfo of a container host; the others are far smaller
inline constexpr int kMaxCpuIndex = (1 << 20) - 1;      // far above what Linux supports: a list cannot ask for more

// The whole file; empty when it cannot be read.
std::string read_proc_text(const std::string& path);

std::vector<std::string_view> split_text(std::string_view text, char separator);

// A decimal number that is all of `text` but for blanks and line ends around it; none when it is beyond int64.
std::optional<int64_t> parse_proc_number(std::string_view text);
std::optional<int64_t> read_proc_number(const std::string& path);

// The first line without blanks around it; empty when there is none.
std::string read_proc_line(const std::string& path);

// `text` when it is one plain word of at most 64 letters, digits, "_", "-" and "."; else empty.
std::string plain_word(std::string text);

// Of lines "key value" or "Key:   value kB": the number behind the first such key.
std::optional<int64_t> find_proc_number(std::string_view text, std::string_view key);
// The text behind "Key:", without blanks around it.
std::optional<std::string> find_proc_field(std::string_view text, std::string_view key);

// "0-3,8,10-11": ascending without duplicates; none when it is no such list, has an index above
// kMaxCpuIndex or names more than that many.
std::optional<std::vector<int>> parse_cpu_list(std::string_view text);

// "always [madvise] never": the word in brackets; empty when there is none.
std::string chosen_word(std::string_view text);

}  // namespace ft
