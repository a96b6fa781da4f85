#include "engine/text/jinja/text_ops.h"

#include <unicode/locid.h>
#include <unicode/uchar.h>
#include <unicode/unistr.h>

#include <algorithm>

#include "engine/text/utf8.h"

namespace ft::jinja {
namespace {

char32_t last_code_point(std::string_view text, size_t& begin) {
  begin = text.size() - 1;
  while (begin > 0 && (static_cast<uint8_t>(text[begin]) & 0xc0u) == 0x80u) --begin;
  return utf8_step(text, begin).code_point;
}

icu::UnicodeString to_icu(std::string_view text) {
  return icu::UnicodeString::fromUTF8(icu::StringPiece(text.data(), static_cast<int32_t>(text.size())));
}

std::string from_icu(const icu::UnicodeString& text) {
  std::string result;
  text.toUTF8String(result);
  return result;
}

bool is_line_end(char32_t c) {
  return (c >= 0x0a && c <= 0x0d) || (c >= 0x1c && c <= 0x1e) || c == 0x85 || c == 0x2028 || c == 0x2029;
}

std::vector<std::string_view> split_at_space(std::string_view text, int64_t limit) {
  std::vector<std::string_view> parts;
  std::string_view rest = strip(text, {}, Side::kLeft);
  while (!rest.empty()) {
    if (limit >= 0 && static_cast<int64_t>(parts.size()) == limit) {
      parts.push_back(rest);
      break;
    }
    size_t at = 0;
    while (at < rest.size()) {
      const Utf8Step step = utf8_step(rest, at);
      if (is_python_space(step.code_point)) break;
      at += static_cast<size_t>(step.length);
    }
    parts.push_back(rest.substr(0, at));
    rest = strip(rest.substr(at), {}, Side::kLeft);
  }
  return parts;
}

}  // namespace

bool is_python_space(char32_t c) {
  return (c >= 0x09 && c <= 0x0d) || (c >= 0x1c && c <= 0x20) || c == 0x85 || c == 0xa0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 || c == 0x202f || c == 0x205f || c == 0x3000;
}

bool is_python_printable(char32_t c) {
  constexpr uint32_t kHidden = U_GC_C_MASK | U_GC_Z_MASK;
  return c == ' ' || (U_GET_GC_MASK(static_cast<UChar32>(c)) & kHidden) == 0;
}

std::string_view strip(std::string_view text, std::optional<std::string_view> characters, Side side) {
  std::u32string set;
  if (characters.has_value()) {
    for (size_t at = 0; at < characters->size();) {
      const Utf8Step step = utf8_step(*characters, at);
      set.push_back(step.code_point);
      at += static_cast<size_t>(step.length);
    }
  }
  const auto removable = [&](char32_t c) {
    return characters.has_value() ? set.find(c) != std::u32string::npos : is_python_space(c);
  };
  while (side != Side::kRight && !text.empty()) {
    const Utf8Step step = utf8_step(text, 0);
    if (!removable(step.code_point)) break;
    text.remove_prefix(static_cast<size_t>(step.length));
  }
  while (side != Side::kLeft && !text.empty()) {
    size_t begin = 0;
    if (!removable(last_code_point(text, begin))) break;
    text.remove_suffix(text.size() - begin);
  }
  return text;
}

std::vector<std::string_view> split(std::string_view text, std::optional<std::string_view> separator, int64_t limit) {
  if (!separator.has_value()) return split_at_space(text, limit);
  std::vector<std::string_view> parts;
  size_t begin = 0;
  while (limit < 0 || static_cast<int64_t>(parts.size()) < limit) {
    const size_t at = text.find(*separator, begin);
    if (at == std::string_view::npos) break;
    parts.push_back(text.substr(begin, at - begin));
    begin = at + separator->size();
  }
  parts.push_back(text.substr(begin));
  return parts;
}

std::vector<std::string_view> split_from_right(std::string_view text, std::optional<std::string_view> separator,
                                               int64_t limit) {
  std::vector<std::string_view> parts;
  std::string_view rest = separator.has_value() ? text : strip(text, {}, Side::kRight);
  while (limit < 0 || static_cast<int64_t>(parts.size()) < limit) {
    if (separator.has_value()) {
      const size_t at = rest.rfind(*separator);
      if (at == std::string_view::npos) break;
      parts.push_back(rest.substr(at + separator->size()));
      rest = rest.substr(0, at);
      continue;
    }
    size_t at = rest.size(), begin = 0;
    while (at > 0 && !is_python_space(last_code_point(rest.substr(0, at), begin))) at = begin;
    if (at == 0) break;
    parts.push_back(rest.substr(at));
    rest = strip(rest.substr(0, at), {}, Side::kRight);
  }
  if (separator.has_value() || !rest.empty()) parts.push_back(rest);
  std::reverse(parts.begin(), parts.end());
  return parts;
}

std::vector<std::string_view> split_lines(std::string_view text, bool keep_ends) {
  std::vector<std::string_view> lines;
  size_t begin = 0;
  for (size_t at = 0; at < text.size();) {
    const Utf8Step step = utf8_step(text, at);
    size_t next = at + static_cast<size_t>(step.length);
    if (is_line_end(step.code_point)) {
      if (step.code_point == '\r' && next < text.size() && text[next] == '\n') ++next;
      lines.push_back(text.substr(begin, (keep_ends ? next : at) - begin));
      begin = next;
    }
    at = next;
  }
  if (begin < text.size()) lines.push_back(text.substr(begin));
  return lines;
}

std::string replace(std::string_view text, std::string_view from, std::string_view to, int64_t limit) {
  std::string result;
  int64_t count = 0;
  if (from.empty()) {  // before every code point and at the end
    for (const std::string_view character : characters(text)) {
      if (limit < 0 || count < limit) result += to;
      ++count;
      result += character;
    }
    if (limit < 0 || count < limit) result += to;
    return result;
  }
  size_t done = 0;
  for (size_t at = text.find(from); at != std::string_view::npos && (limit < 0 || count < limit); ++count) {
    result.append(text.substr(done, at - done)).append(to);
    done = at + from.size();
    at = text.find(from, done);
  }
  return result.append(text.substr(done));
}

std::string upper(std::string_view text) { return from_icu(to_icu(text).toUpper(icu::Locale::getRoot())); }
std::string lower(std::string_view text) { return from_icu(to_icu(text).toLower(icu::Locale::getRoot())); }

std::string capitalize(std::string_view text) {
  if (text.empty()) return {};
  const auto first = static_cast<size_t>(utf8_step(text, 0).length);
  // Lower-cased as a whole: a final sigma depends on what stands before it.
  const std::string lowered = lower(text);
  const auto lowered_first = lower(text.substr(0, first)).size();
  return from_icu(to_icu(text.substr(0, first)).toTitle(nullptr, icu::Locale::getRoot())) +
         lowered.substr(lowered_first);
}

std::string title_by_letters(std::string_view text) {
  const auto is_cased = [](const Utf8Step& step) {
    return u_hasBinaryProperty(static_cast<UChar32>(step.code_point), UCHAR_CASED) != 0;
  };
  std::string result;
  for (size_t at = 0; at < text.size();) {
    const Utf8Step first = utf8_step(text, at);
    const auto length = static_cast<size_t>(first.length);
    result += from_icu(to_icu(text.substr(at, length)).toTitle(nullptr, icu::Locale::getRoot()));
    at += length;
    if (!is_cased(first)) continue;
    const size_t rest = at;
    while (at < text.size() && is_cased(utf8_step(text, at))) at += static_cast<size_t>(utf8_step(text, at).length);
    result += lower(text.substr(rest, at - rest));
  }
  return result;
}

std::string title(std::string_view text) {
  const auto separates = [](char32_t c) {
    return c == '-' || c == '(' || c == '{' || c == '[' || c == '<' || is_python_space(c);
  };
  std::string result;
  size_t word = 0;
  const auto finish_word = [&](size_t end) {
    if (end == word) return;
    const auto first = static_cast<size_t>(utf8_step(text, word).length);
    result += upper(text.substr(word, first)) + lower(text.substr(word + first, end - word - first));
  };
  for (size_t at = 0; at < text.size();) {
    const Utf8Step step = utf8_step(text, at);
    const auto length = static_cast<size_t>(step.length);
    if (separates(step.code_point)) {
      finish_word(at);
      result += text.substr(at, length);
      word = at + length;
    }
    at += length;
  }
  finish_word(text.size());
  return result;
}

std::string escape_html(std::string_view text) {
  std::string result;
  for (const char c : text) {
    switch (c) {
      case '&':
        result += "&amp;";
        break;
      case '<':
        result += "&lt;";
        break;
      case '>':
        result += "&gt;";
        break;
      case '\'':
        result += "&#39;";
        break;
      case '"':
        result += "&#34;";
        break;
      default:
        result += c;
    }
  }
  return result;
}

std::string_view substring(std::string_view text, int64_t begin, int64_t end) {
  size_t at = 0;
  const auto skip = [&](int64_t count) {
    while (count > 0 && at < text.size()) {
      at += static_cast<size_t>(utf8_step(text, at).length);
      --count;
    }
    return at;
  };
  const size_t first = skip(begin);
  return text.substr(first, skip(end - begin) - first);
}

std::vector<std::string_view> characters(std::string_view text) {
  std::vector<std::string_view> result;
  for (size_t at = 0; at < text.size();) {
    const auto length = static_cast<size_t>(utf8_step(text, at).length);
    result.push_back(text.substr(at, length));
    at += length;
  }
  return result;
}

}  // namespace ft::jinja
