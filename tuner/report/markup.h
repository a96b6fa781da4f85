// HTML and SVG that are well formed by construction: every element that is opened is closed, every text and attribute
// is escaped. The output is HTML 5 and XML at once, so that a test can parse it with either.
#pragma once

#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace ft {

// & < > " ' as references; control characters, which XML has no place for, as U+FFFD. `text` is UTF-8.
std::string escape_markup(std::string_view text);

class Markup {
 public:
  using Attributes = std::initializer_list<std::pair<std::string_view, std::string>>;

  Markup& open(std::string_view tag, Attributes attributes = {});
  Markup& close();
  Markup& text(std::string_view text);
  Markup& leaf(std::string_view tag, std::string_view text, Attributes attributes = {});  // open, text, close
  Markup& empty(std::string_view tag, Attributes attributes = {});                        // <br/>: without content
  Markup& append(const Markup& other);  // REQUIRES that everything in `other` is closed
  // As it is: for style sheets that are constants of ours. REQUIRES no '<' and no '&'.
  Markup& constant(std::string_view text);

  bool closed() const { return open_.empty(); }
  const std::string& str() const;  // REQUIRES closed()

 private:
  void begin(std::string_view tag, Attributes attributes);

  std::string out_;
  std::vector<std::string> open_;
};

}  // namespace ft
