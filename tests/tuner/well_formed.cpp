#include "tests/tuner/well_formed.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <set>
#include <vector>

namespace ft {
namespace {

bool is_name(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '-' || c == '_' || c == ':'; }

class Reader {
 public:
  explicit Reader(std::string_view text) : text_(text) {}

  std::string run() {
    constexpr std::string_view kDoctype = "<!DOCTYPE html>\n";
    if (text_.starts_with(kDoctype)) at_ = kDoctype.size();
    while (problem_.empty() && at_ < text_.size()) {
      if (text_[at_] == '<') {
        element();
      } else {
        content();
      }
    }
    if (problem_.empty() && !open_.empty()) fail("not closed: " + open_.back());
    if (problem_.empty() && roots_ != 1) fail("not one root");
    return problem_;
  }

 private:
  void fail(const std::string& what) {
    if (problem_.empty()) problem_ = what + " at byte " + std::to_string(at_);
  }

  char peek() const { return at_ < text_.size() ? text_[at_] : '\0'; }

  std::string name() {
    std::string word;
    while (is_name(peek())) word += text_[at_++];
    if (word.empty()) fail("no name");
    return word;
  }

  void spaces() {
    while (std::isspace(static_cast<unsigned char>(peek())) != 0) ++at_;
  }

  void reference() {
    const size_t end = text_.find(';', at_);
    const std::string_view entity = end == std::string_view::npos ? "" : text_.substr(at_ + 1, end - at_ - 1);
    constexpr std::array<std::string_view, 5> kNamed = {"amp", "lt", "gt", "quot", "apos"};
    const bool named = std::find(kNamed.begin(), kNamed.end(), entity) != kNamed.end();
    const bool number = entity.size() > 1 && entity[0] == '#' &&
                        std::all_of(entity.begin() + 1, entity.end(), [](char c) { return c >= '0' && c <= '9'; });
    if (!named && !number) return fail("a bare &");
    at_ = end + 1;
  }

  void content() {
    const char c = text_[at_];
    if (c == '&') return reference();
    if (open_.empty() && std::isspace(static_cast<unsigned char>(c)) == 0) return fail("text outside of elements");
    if (static_cast<unsigned char>(c) < 0x20 && c != '\n' && c != '\t') return fail("a control character");
    ++at_;
  }

  void attributes() {
    std::set<std::string> names;
    for (;;) {
      spaces();
      if (peek() == '>' || peek() == '/' || !problem_.empty()) return;
      const std::string key = name();
      if (!problem_.empty()) return;
      if (!names.insert(key).second) return fail("attribute twice: " + key);
      if (peek() != '=' || at_ + 1 >= text_.size() || text_[at_ + 1] != '"')
        return fail("attribute without a value in quotes");
      at_ += 2;
      while (problem_.empty() && peek() != '"') {
        if (at_ >= text_.size() || peek() == '<') return fail("attribute not ended");
        if (peek() == '&') {
          reference();
        } else {
          ++at_;
        }
      }
      ++at_;
    }
  }

  void element() {
    ++at_;
    if (peek() == '/') {
      ++at_;
      const std::string closed = name();
      if (open_.empty() || open_.back() != closed) return fail("closes " + closed);
      open_.pop_back();
      if (peek() != '>') return fail("a closing tag that does not end");
      ++at_;
      return;
    }
    const std::string opened = name();
    if (open_.empty()) ++roots_;
    attributes();
    if (!problem_.empty()) return;
    const bool empty = peek() == '/';
    if (empty) ++at_;
    if (peek() != '>') return fail("a tag that does not end");
    ++at_;
    if (!empty) open_.push_back(opened);
  }

  std::string_view text_;
  size_t at_ = 0;
  int roots_ = 0;
  std::vector<std::string> open_;
  std::string problem_;
};

}  // namespace

std::string well_formed(std::string_view text) { return Reader(text).run(); }

}  // namespace ft
