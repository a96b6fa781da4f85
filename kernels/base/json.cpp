#include "kernels/base/json.h"

#include <cstring>
#include <functional>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "kernels/base/error.h"

namespace ft {
namespace {

// Tells how far the parser has read: nlohmann's SAX events carry no position.
class CountingIterator {
 public:
  using difference_type = std::ptrdiff_t;
  using value_type = char;
  using pointer = const char*;
  using reference = const char&;
  using iterator_category = std::input_iterator_tag;

  CountingIterator(const char* at, const char** furthest) : at_(at), furthest_(furthest) {}
  reference operator*() const { return *at_; }
  CountingIterator& operator++() {
    *furthest_ = ++at_;
    return *this;
  }
  bool operator==(const CountingIterator& other) const { return at_ == other.at_; }
  bool operator!=(const CountingIterator& other) const { return at_ != other.at_; }

 private:
  const char* at_;
  const char** furthest_;
};

// Bytes past ASCII are escaped: what the parser last read may be broken UTF-8, and the message may go into a JSON
// reply.
std::string ascii(std::string_view text) {
  constexpr char kHex[] = "0123456789abcdef";
  std::string out;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x80) {
      out += c;
    } else {
      out += {'\\', 'x', kHex[byte >> 4], kHex[byte & 15u]};
    }
  }
  return out;
}

// Inserts a key into an object that is being read; null when it is there already.
class SortedInserter {
 public:
  static Json* insert(Json& object, std::string&& key) {
    auto [position, inserted] = object.get_ref<Json::object_t&>().emplace(std::move(key), nullptr);
    return inserted ? &position->second : nullptr;
  }
};

// An ordered object is a vector. Looking a key up in it is linear, so a set of hashes answers for objects that are not
// small: reading n keys stays linear in n, whatever max_keys_per_object a caller allows.
class OrderedInserter {
 public:
  OrderedJson* insert(OrderedJson& object, std::string&& key) {
    constexpr size_t kLinearKeys = 16;
    auto& members = object.get_ref<OrderedJson::object_t&>();
    const auto present = [&] {
      for (const auto& member : members) {
        if (member.first == key) return true;
      }
      return false;
    };
    if (members.size() < kLinearKeys) {
      if (present()) return nullptr;
    } else {
      if (hashes_.empty()) {
        for (const auto& member : members) hashes_.insert(std::hash<std::string>{}(member.first));
      }
      if (!hashes_.insert(std::hash<std::string>{}(key)).second && present()) return nullptr;
    }
    members.emplace_back(std::move(key), OrderedJson());
    return &members.back().second;
  }

 private:
  std::unordered_set<size_t> hashes_;
};

// Builds the value from nlohmann's SAX events and stops at the first limit. The parser and this builder keep their own
// stacks, so depth costs no call stack.
template <class Value, class Inserter>
class LimitedBuilder {
 public:
  LimitedBuilder(const JsonLimits& limits, Value& root) : limits_(limits), root_(root) {}

  bool null() { return add(nullptr); }
  bool boolean(bool value) { return add(value); }
  bool number_integer(int64_t value) { return add(value); }
  bool number_unsigned(uint64_t value) { return add(value); }
  bool number_float(double value, const std::string&) { return add(value); }
  bool string(std::string& value) { return add(std::move(value)); }
  bool binary(typename Value::binary_t&) { return refuse("binary value", "JSON text"); }
  bool start_object(size_t) { return open(Value::object()); }
  bool start_array(size_t) { return open(Value::array()); }
  bool end_object() { return close(); }
  bool end_array() { return close(); }

  bool key(std::string& name) {
    if (!count()) return false;
    Frame& frame = stack_.back();
    if (frame.value->size() >= limits_.max_keys_per_object) {
      return refuse("too many keys in one object", "at most " + std::to_string(limits_.max_keys_per_object));
    }
    const std::string shown = name.substr(0, kShownKeyBytes);
    member_ = frame.inserter.insert(*frame.value, std::move(name));
    if (member_ == nullptr) return refuse("duplicate key \"" + ascii(shown) + "\"", "each key once");
    return true;
  }

  bool parse_error(size_t, const std::string&, const nlohmann::detail::exception& error) {
    const std::string_view text = error.what();
    const size_t tag_end = text.find("] ");  // "[json.exception.parse_error.101] parse error at ..."
    const std::string problem = ascii(tag_end == std::string_view::npos ? text : text.substr(tag_end + 2));
    return refuse(problem, problem.starts_with("number overflow") ? "numbers of up to 1.7e308" : "");
  }

  const std::string& problem() const { return problem_; }
  const std::string& allowed() const { return allowed_; }

 private:
  static constexpr size_t kShownKeyBytes = 60;

  struct Frame {
    Value* value;
    Inserter inserter;
  };

  bool refuse(std::string problem, std::string allowed) {
    problem_ = std::move(problem);
    allowed_ = std::move(allowed);
    return false;
  }

  bool count() {
    if (++values_ <= limits_.max_values) return true;
    return refuse("too many values", "at most " + std::to_string(limits_.max_values) + " values and keys");
  }

  // Puts the value where it belongs; a pointer to it stays valid while it is the last of its container.
  template <class T>
  Value* place(T&& value) {
    if (stack_.empty()) {
      root_ = Value(std::forward<T>(value));
      return &root_;
    }
    Value& parent = *stack_.back().value;
    if (parent.is_array()) {
      auto& items = parent.template get_ref<typename Value::array_t&>();
      items.emplace_back(std::forward<T>(value));
      return &items.back();
    }
    *member_ = Value(std::forward<T>(value));
    return member_;
  }

  template <class T>
  bool add(T&& value) {
    if (!count()) return false;
    place(std::forward<T>(value));
    return true;
  }

  bool open(Value&& container) {
    if (!count()) return false;
    if (stack_.size() >= limits_.max_depth) {
      return refuse("nested too deeply", "at most " + std::to_string(limits_.max_depth) + " levels");
    }
    stack_.push_back({place(std::move(container)), {}});
    return true;
  }

  bool close() {
    stack_.pop_back();
    return true;
  }

  const JsonLimits& limits_;
  Value& root_;
  std::vector<Frame> stack_;
  Value* member_ = nullptr;  // the value of the key that was read last
  size_t values_ = 0;
  std::string problem_;
  std::string allowed_;
};

[[noreturn]] void throw_at(ErrorKind kind, std::string_view source, size_t offset, std::string problem,
                           std::string allowed) {
  throw Error(kind, {.what = "not acceptable as JSON at byte " + std::to_string(offset) + " of " + ascii(source) +
                             ": " + std::move(problem),
                     .allowed = std::move(allowed)});
}

template <class Value, class Inserter>
Value parse(std::string_view text, std::string_view source, const JsonLimits& limits, ErrorKind kind) {
  if (text.size() > limits.max_bytes) {
    throw_at(kind, source, limits.max_bytes, "too long: " + std::to_string(text.size()) + " bytes",
             "at most " + std::to_string(limits.max_bytes) + " bytes");
  }
  // The parser takes a NUL byte for the end of the text and would ignore what follows.
  const void* nul = text.empty() ? nullptr : std::memchr(text.data(), 0, text.size());
  if (nul != nullptr) {
    throw_at(kind, source, static_cast<size_t>(static_cast<const char*>(nul) - text.data()), "NUL byte", "");
  }
  const char* furthest = text.data();
  Value root;
  LimitedBuilder<Value, Inserter> builder(limits, root);
  const CountingIterator begin(text.data(), &furthest);
  const CountingIterator end(text.data() + text.size(), &furthest);
  if (!Value::sax_parse(begin, end, &builder)) {
    throw_at(kind, source, static_cast<size_t>(furthest - text.data()), builder.problem(), builder.allowed());
  }
  return root;
}

}  // namespace

Json parse_json(std::string_view text, std::string_view source, const JsonLimits& limits, ErrorKind kind) {
  return parse<Json, SortedInserter>(text, source, limits, kind);
}

OrderedJson parse_ordered_json(std::string_view text, std::string_view source, const JsonLimits& limits,
                               ErrorKind kind) {
  return parse<OrderedJson, OrderedInserter>(text, source, limits, kind);
}

Json read_json_file(const std::string& path, const JsonLimits& limits) {
  return parse_json(read_text_file(path, limits.max_bytes), path, limits);
}

}  // namespace ft
