#include "kernels/host/proc_text.h"

#include <algorithm>
#include <charconv>
#include <set>

#include "kernels/base/error.h"
#include "kernels/base/json.h"

namespace ft {
namespace {

constexpr std::string_view kBlanks = " \t\r\n";

std::string_view trimmed(std::string_view text) {
  const size_t begin = text.find_first_not_of(kBlanks);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(kBlanks) - begin + 1);
}

}  // namespace

std::string read_proc_text(const std::string& path) {
  try {
    return read_text_file(path, kMaxProcTextBytes);
  } catch (const Error&) {
    return {};
  }
}

std::vector<std::string_view> split_text(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  while (true) {
    const size_t at = text.find(separator);
    parts.push_back(text.substr(0, at));
    if (at == std::string_view::npos) return parts;
    text.remove_prefix(at + 1);
  }
}

std::optional<int64_t> parse_proc_number(std::string_view text) {
  text = trimmed(text);
  int64_t value = 0;
  const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (code != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

std::optional<int64_t> read_proc_number(const std::string& path) { return parse_proc_number(read_proc_text(path)); }

std::string read_proc_line(const std::string& path) {
  const std::string text = read_proc_text(path);
  return std::string(trimmed(std::string_view(text).substr(0, text.find('\n'))));
}

std::string plain_word(std::string text) {
  constexpr size_t kLongest = 64;
  const bool plain = text.size() <= kLongest && std::all_of(text.begin(), text.end(), [](char c) {
                       return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
                              c == '-' || c == '.';
                     });
  return plain ? text : std::string();
}

std::optional<std::string> find_proc_field(std::string_view text, std::string_view key) {
  for (const std::string_view line : split_text(text, '\n')) {
    if (line.size() <= key.size() || !line.starts_with(key)) continue;
    const std::string_view rest = line.substr(key.size());
    if (rest[0] == ':' || rest[0] == ' ' || rest[0] == '\t') return std::string(trimmed(rest.substr(1)));
  }
  return std::nullopt;
}

std::optional<int64_t> find_proc_number(std::string_view text, std::string_view key) {
  const std::optional<std::string> field = find_proc_field(text, key);
  if (!field) return std::nullopt;
  return parse_proc_number(std::string_view(*field).substr(0, field->find_first_of(kBlanks)));
}

std::optional<std::vector<int>> parse_cpu_list(std::string_view text) {
  text = trimmed(text);
  std::set<int> cpus;
  int64_t left = kMaxCpuIndex + 1;  // of work, however often a list repeats itself
  if (text.empty()) return std::vector<int>{};
  for (const std::string_view part : split_text(text, ',')) {
    const size_t dash = part.find('-');
    const auto first = parse_proc_number(part.substr(0, dash));
    const auto last = dash == std::string_view::npos ? first : parse_proc_number(part.substr(dash + 1));
    if (!first || !last || *first < 0 || *last < *first || *last > kMaxCpuIndex) return std::nullopt;
    left -= *last - *first + 1;
    if (left < 0) return std::nullopt;
    for (int64_t cpu = *first; cpu <= *last; ++cpu) cpus.insert(static_cast<int>(cpu));
  }
  return std::vector<int>(cpus.begin(), cpus.end());
}

std::string chosen_word(std::string_view text) {
  const size_t open = text.find('[');
  const size_t close = open == std::string_view::npos ? open : text.find(']', open);
  if (close == std::string_view::npos) return {};
  return std::string(text.substr(open + 1, close - open - 1));
}

}  // namespace ft
