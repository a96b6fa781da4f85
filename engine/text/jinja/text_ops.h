// Python's string methods over UTF-8.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace ft::jinja {

bool is_python_space(char32_t c);      // str.isspace
bool is_python_printable(char32_t c);  // str.isprintable

enum class Side { kLeft, kRight, kBoth };
// str.strip, lstrip, rstrip; without `characters`: white space.
std::string_view strip(std::string_view text, std::optional<std::string_view> characters, Side side);

// str.split and rsplit. Without a separator: at runs of white space. limit < 0: no limit. REQUIRES: separator not
// empty.
std::vector<std::string_view> split(std::string_view text, std::optional<std::string_view> separator, int64_t limit);
std::vector<std::string_view> split_from_right(std::string_view text, std::optional<std::string_view> separator,
                                               int64_t limit);
std::vector<std::string_view> split_lines(std::string_view text, bool keep_ends);

std::string replace(std::string_view text, std::string_view from, std::string_view to, int64_t limit);
std::string upper(std::string_view text);
std::string lower(std::string_view text);
std::string capitalize(std::string_view text);
std::string title(std::string_view text);             // the filter: words begin after -, white space, ( { [ <
std::string title_by_letters(std::string_view text);  // str.title: words begin after what is no letter
std::string escape_html(std::string_view text);       // MarkupSafe: & < > ' "

// Code points [begin, end) of the text. REQUIRES: begin <= end <= length.
std::string_view substring(std::string_view text, int64_t begin, int64_t end);
std::vector<std::string_view> characters(std::string_view text);

}  // namespace ft::jinja
