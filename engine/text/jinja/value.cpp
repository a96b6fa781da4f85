#include "engine/text/jinja/value.h"

#include <limits>
#include <nlohmann/json.hpp>

namespace ft::jinja {
namespace {

constexpr size_t kLinearKeys = 8;  // below, comparing keys is faster than hashing one

bool same_key(const Value& a, const Value& b) {
  if (a.is(Kind::kString) || b.is(Kind::kString)) {
    return a.is(Kind::kString) && b.is(Kind::kString) && a.as_string() == b.as_string();
  }
  if (a.is_number() && b.is_number()) {
    return a.is_integral() && b.is_integral() ? a.as_int() == b.as_int() : a.as_number() == b.as_number();
  }
  return a.is(Kind::kNone) && b.is(Kind::kNone);
}

// Moves the values that `object` alone owns onto `pending`.
void take_children(const std::shared_ptr<Object>& object, std::vector<Value>& pending) {
  if (object.use_count() != 1) return;
  if (auto* list = dynamic_cast<ListObject*>(object.get())) {
    for (Value& item : list->items) pending.push_back(std::move(item));
    list->items.clear();
  } else if (auto* dict = dynamic_cast<DictObject*>(object.get())) {
    for (auto& entry : dict->entries) pending.push_back(std::move(entry.second));
    dict->entries.clear();
  }
}

bool holds_values(const Value& value) {
  return value.is_sequence() || value.is(Kind::kGenerator) || value.is(Kind::kDict) || value.is(Kind::kNamespace);
}

void release(std::vector<Value> pending) {
  while (!pending.empty()) {
    const Value value = std::move(pending.back());
    pending.pop_back();
    if (holds_values(value)) take_children(value.as_object(), pending);
  }
}

}  // namespace

ListObject::~ListObject() {
  std::vector<Value> pending;
  for (Value& item : items) {
    if (holds_values(item)) pending.push_back(std::move(item));
  }
  release(std::move(pending));
}

DictObject::~DictObject() {
  std::vector<Value> pending;
  for (auto& entry : entries) {
    if (holds_values(entry.second)) pending.push_back(std::move(entry.second));
  }
  release(std::move(pending));
}

Value Value::undefined(std::string message) {
  Value value = string(std::move(message));
  value.kind_ = Kind::kUndefined;
  return value;
}

Value Value::none() {
  Value value;
  value.kind_ = Kind::kNone;
  return value;
}

Value Value::boolean(bool flag) {
  Value value;
  value.kind_ = Kind::kBool;
  value.integer_ = flag ? 1 : 0;
  return value;
}

Value Value::integer(int64_t number) {
  Value value;
  value.kind_ = Kind::kInt;
  value.integer_ = number;
  return value;
}

Value Value::real(double number) {
  Value value;
  value.kind_ = Kind::kFloat;
  value.real_ = number;
  return value;
}

Value Value::string(std::string text) {
  Value value;
  value.kind_ = Kind::kString;
  auto object = std::make_shared<StringObject>();
  object->text = std::move(text);
  value.object_ = std::move(object);
  return value;
}

Value Value::markup(std::string text) {
  Value value = string(std::move(text));
  value.markup_ = true;
  return value;
}

Value Value::list(std::vector<Value> items) {
  Value value;
  value.kind_ = Kind::kList;
  auto object = std::make_shared<ListObject>();
  object->items = std::move(items);
  value.object_ = std::move(object);
  return value;
}

Value Value::generator(std::vector<Value> items) {
  Value value = list(std::move(items));
  value.kind_ = Kind::kGenerator;
  return value;
}

Value Value::tuple(std::vector<Value> items) {
  Value value = list(std::move(items));
  value.kind_ = Kind::kTuple;
  return value;
}

Value Value::dict(std::shared_ptr<DictObject> dict) { return object(Kind::kDict, std::move(dict)); }

Value Value::object(Kind kind, std::shared_ptr<Object> object) {
  Value value;
  value.kind_ = kind;
  value.object_ = std::move(object);
  return value;
}

Value Value::from_json(const OrderedJson& json) {
  switch (json.type()) {
    case OrderedJson::value_t::boolean:
      return boolean(json.get<bool>());
    case OrderedJson::value_t::number_integer:
      return integer(json.get<int64_t>());
    case OrderedJson::value_t::number_unsigned: {
      const auto number = json.get<uint64_t>();
      if (number > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) return real(static_cast<double>(number));
      return integer(static_cast<int64_t>(number));
    }
    case OrderedJson::value_t::number_float:
      return real(json.get<double>());
    case OrderedJson::value_t::string:
      return string(json.get<std::string>());
    case OrderedJson::value_t::array: {
      std::vector<Value> items;
      items.reserve(json.size());
      for (const OrderedJson& item : json) items.push_back(from_json(item));
      return list(std::move(items));
    }
    case OrderedJson::value_t::object: {
      auto object = std::make_shared<DictObject>();
      for (const auto& [key, item] : json.items()) object->set(string(key), from_json(item));
      return dict(std::move(object));
    }
    default:
      return none();
  }
}

const std::string& Value::as_string() const { return static_cast<const StringObject&>(*object_).text; }

const std::string& Value::undefined_message() const {
  static const std::string unnamed = "value is undefined";
  return object_ == nullptr ? unnamed : static_cast<const StringObject&>(*object_).text;
}

std::vector<Value>& Value::items() const { return static_cast<ListObject&>(*object_).items; }

DictObject& Value::as_dict() const { return static_cast<DictObject&>(*object_); }

size_t DictObject::position(std::string_view key) const {
  if (!index_.empty()) {
    const auto found = index_.find(std::string(key));
    return found == index_.end() ? entries.size() : found->second;
  }
  size_t at = 0;
  while (at < entries.size() && !(entries[at].first.is(Kind::kString) && entries[at].first.as_string() == key)) ++at;
  return at;
}

size_t DictObject::position(const Value& key) const {
  if (key.is(Kind::kString)) return position(key.as_string());
  size_t at = 0;
  while (at < entries.size() && !same_key(entries[at].first, key)) ++at;
  return at;
}

void DictObject::index_all() {
  index_.clear();
  if (entries.size() <= kLinearKeys) return;
  for (size_t i = 0; i < entries.size(); ++i) {
    if (entries[i].first.is(Kind::kString)) index_.emplace(entries[i].first.as_string(), i);
  }
}

const Value* DictObject::find(const Value& key) const {
  const size_t at = position(key);
  return at == entries.size() ? nullptr : &entries[at].second;
}

const Value* DictObject::find(std::string_view key) const {
  const size_t at = position(key);
  return at == entries.size() ? nullptr : &entries[at].second;
}

void DictObject::set(const Value& key, Value value) {
  const size_t at = position(key);
  if (at < entries.size()) {
    entries[at].second = std::move(value);
    return;
  }
  entries.emplace_back(key, std::move(value));
  if (index_.empty()) {
    index_all();
  } else if (key.is(Kind::kString)) {
    index_.emplace(key.as_string(), at);
  }
}

bool DictObject::erase(const Value& key) {
  const size_t at = position(key);
  if (at == entries.size()) return false;
  entries.erase(entries.begin() + static_cast<std::ptrdiff_t>(at));
  index_all();
  return true;
}

void DictObject::clear() {
  entries.clear();
  index_.clear();
}

}  // namespace ft::jinja
