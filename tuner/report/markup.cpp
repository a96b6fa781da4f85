#include "tuner/report/markup.h"

#include "kernels/base/error.h"

namespace ft {

std::string escape_markup(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (const char c : text) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      case '\'':
        out += "&#39;";
        break;
      default: {
        const auto byte = static_cast<unsigned char>(c);
        const bool control = (byte < 0x20 && c != '\n' && c != '\t') || byte == 0x7f;
        if (control) {
          out += "\xEF\xBF\xBD";  // U+FFFD
        } else {
          out += c;
        }
      }
    }
  }
  return out;
}

void Markup::begin(std::string_view tag, Attributes attributes) {
  out_ += "<" + std::string(tag);
  for (const auto& [name, value] : attributes) out_ += " " + std::string(name) + "=\"" + escape_markup(value) + "\"";
}

Markup& Markup::open(std::string_view tag, Attributes attributes) {
  begin(tag, attributes);
  out_ += ">";
  open_.emplace_back(tag);
  return *this;
}

Markup& Markup::close() {
  FT_CHECK(!open_.empty());
  out_ += "</" + open_.back() + ">";
  open_.pop_back();
  return *this;
}

Markup& Markup::text(std::string_view text) {
  out_ += escape_markup(text);
  return *this;
}

Markup& Markup::leaf(std::string_view tag, std::string_view content, Attributes attributes) {
  return open(tag, attributes).text(content).close();
}

Markup& Markup::empty(std::string_view tag, Attributes attributes) {
  begin(tag, attributes);
  out_ += "/>";
  return *this;
}

const std::string& Markup::str() const {
  FT_CHECK(closed());
  return out_;
}

Markup& Markup::append(const Markup& other) {
  out_ += other.str();
  return *this;
}

Markup& Markup::constant(std::string_view text) {
  FT_CHECK(text.find_first_of("<&") == std::string_view::npos);
  out_ += text;
  return *this;
}

}  // namespace ft
