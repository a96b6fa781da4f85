#include "engine/text/jinja/operations.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "engine/text/jinja/printing.h"
#include "engine/text/jinja/text_ops.h"
#include "engine/text/utf8.h"

namespace ft::jinja {
namespace {

constexpr std::string_view kOperators[] = {"+", "-", "*", "/", "//", "%", "**"};

[[noreturn]] void unsupported(BinaryOp op, const Value& a, const Value& b) {
  std::string message = "unsupported operand types for ";
  message.append(kOperators[static_cast<size_t>(op)]).append(": ").append(type_name(a)).append(" and ");
  fail(message.append(type_name(b)));
}

[[noreturn]] void overflow() { fail("an integer does not fit in 64 bits"); }

int64_t integer_power(int64_t base, int64_t exponent) {
  int64_t result = 1;
  for (int64_t i = 0; i < exponent; ++i) {
    if (result == 0 || (result == 1 && base == 1)) return result;
    if (base == -1) return exponent % 2 == 0 ? 1 : -1;
    if (__builtin_mul_overflow(result, base, &result)) overflow();
  }
  return result;
}

Value integer_binary(BinaryOp op, int64_t a, int64_t b) {
  int64_t result = 0;
  switch (op) {
    case BinaryOp::kAdd:
      if (__builtin_add_overflow(a, b, &result)) overflow();
      return Value::integer(result);
    case BinaryOp::kSubtract:
      if (__builtin_sub_overflow(a, b, &result)) overflow();
      return Value::integer(result);
    case BinaryOp::kMultiply:
      if (__builtin_mul_overflow(a, b, &result)) overflow();
      return Value::integer(result);
    case BinaryOp::kDivide:
      if (b == 0) fail("division by zero");
      return Value::real(static_cast<double>(a) / static_cast<double>(b));
    case BinaryOp::kFloorDivide:
    case BinaryOp::kModulo: {
      if (b == 0) fail("division by zero");
      if (b == -1) return op == BinaryOp::kModulo ? Value::integer(0) : integer_binary(BinaryOp::kSubtract, 0, a);
      const bool adjust = a % b != 0 && (a < 0) != (b < 0);
      return Value::integer(op == BinaryOp::kModulo ? a % b + (adjust ? b : 0) : a / b - (adjust ? 1 : 0));
    }
    case BinaryOp::kPower:
      if (b < 0) {
        if (a == 0) fail("zero cannot be raised to a negative power");
        return Value::real(std::pow(static_cast<double>(a), static_cast<double>(b)));
      }
      return Value::integer(integer_power(a, b));
  }
  return {};
}

Value real_binary(BinaryOp op, double a, double b) {
  switch (op) {
    case BinaryOp::kAdd:
      return Value::real(a + b);
    case BinaryOp::kSubtract:
      return Value::real(a - b);
    case BinaryOp::kMultiply:
      return Value::real(a * b);
    case BinaryOp::kDivide:
      if (b == 0) fail("float division by zero");
      return Value::real(a / b);
    case BinaryOp::kFloorDivide:
    case BinaryOp::kModulo: {
      if (b == 0) fail("float modulo by zero");
      double rest = std::fmod(a, b);
      if (rest != 0 && (rest < 0) != (b < 0)) rest += b;
      if (op == BinaryOp::kModulo) return Value::real(rest == 0 ? std::copysign(0.0, b) : rest);
      return Value::real(std::round((a - rest) / b));
    }
    case BinaryOp::kPower:
      if (a < 0 && b != std::floor(b)) fail("a negative number cannot be raised to a fraction");
      return Value::real(std::pow(a, b));
  }
  return {};
}

Value concatenate(const Value& a, const Value& b, Budget& budget) {
  if (a.is(Kind::kString) && b.is(Kind::kString)) {
    budget.charge_bytes(a.as_string().size() + b.as_string().size());
    if (a.is_markup() == b.is_markup()) {
      std::string text = a.as_string() + b.as_string();
      return a.is_markup() ? Value::markup(std::move(text)) : Value::string(std::move(text));
    }
    return Value::markup((a.is_markup() ? a.as_string() : escape_html(a.as_string())) +
                         (b.is_markup() ? b.as_string() : escape_html(b.as_string())));
  }
  if (a.kind() != b.kind() || !a.is_sequence()) unsupported(BinaryOp::kAdd, a, b);
  budget.charge_entries(a.items().size() + b.items().size());
  std::vector<Value> items = a.items();
  items.insert(items.end(), b.items().begin(), b.items().end());
  return a.is(Kind::kList) ? Value::list(std::move(items)) : Value::tuple(std::move(items));
}

Value repeat(const Value& value, int64_t count, Budget& budget) {
  count = std::max<int64_t>(count, 0);
  const size_t unit = value.is(Kind::kString) ? value.as_string().size() : value.items().size();
  if (unit != 0 && static_cast<size_t>(count) > kMaxOutputBytes / unit) fail("a repetition is too long");
  if (value.is(Kind::kString)) {
    budget.charge_bytes(unit * static_cast<size_t>(count));
    std::string text;
    for (int64_t i = 0; unit != 0 && i < count; ++i) text += value.as_string();
    return value.is_markup() ? Value::markup(std::move(text)) : Value::string(std::move(text));
  }
  budget.charge_entries(unit * static_cast<size_t>(count));
  std::vector<Value> items;
  for (int64_t i = 0; unit != 0 && i < count; ++i) {
    items.insert(items.end(), value.items().begin(), value.items().end());
  }
  return value.is(Kind::kList) ? Value::list(std::move(items)) : Value::tuple(std::move(items));
}

bool equal_at(const Value& a, const Value& b, int depth, Budget& budget) {
  if (depth > kMaxValueDepth) fail("values are nested deeper than " + std::to_string(kMaxValueDepth));
  budget.charge(1);
  if (a.is_number() && b.is_number()) {
    return a.is_integral() && b.is_integral() ? a.as_int() == b.as_int() : a.as_number() == b.as_number();
  }
  if (a.kind() != b.kind()) return false;
  switch (a.kind()) {
    case Kind::kUndefined:
    case Kind::kNone:
      return true;
    case Kind::kString:
      budget.charge_bytes(std::min(a.as_string().size(), b.as_string().size()));
      return a.as_string() == b.as_string();
    case Kind::kList:
    case Kind::kTuple:
      return std::equal(a.items().begin(), a.items().end(), b.items().begin(), b.items().end(),
                        [&](const Value& x, const Value& y) { return equal_at(x, y, depth + 1, budget); });
    case Kind::kDict: {
      if (a.as_dict().entries.size() != b.as_dict().entries.size()) return false;
      for (const auto& [key, value] : a.as_dict().entries) {
        const Value* other = b.as_dict().find(key);
        if (other == nullptr || !equal_at(value, *other, depth + 1, budget)) return false;
      }
      return true;
    }
    default:
      return a.as_object() == b.as_object();
  }
}

bool less_at(const Value& a, const Value& b, int depth, Budget& budget) {
  if (depth > kMaxValueDepth) fail("values are nested deeper than " + std::to_string(kMaxValueDepth));
  budget.charge(1);
  require_defined(a);
  require_defined(b);
  if (a.is_number() && b.is_number()) {
    return a.is_integral() && b.is_integral() ? a.as_int() < b.as_int() : a.as_number() < b.as_number();
  }
  if (a.is(Kind::kString) && b.is(Kind::kString)) {
    budget.charge_bytes(std::min(a.as_string().size(), b.as_string().size()));
    return a.as_string() < b.as_string();  // bytes of UTF-8 sort as their code points
  }
  if (a.kind() != b.kind() || !a.is_sequence())
    fail("'<' not supported between " + type_name(a) + " and " + type_name(b));
  for (size_t i = 0; i < a.items().size() && i < b.items().size(); ++i) {
    if (!equal_at(a.items()[i], b.items()[i], depth + 1, budget)) {
      return less_at(a.items()[i], b.items()[i], depth + 1, budget);
    }
  }
  return a.items().size() < b.items().size();
}

// Index of Python: negative counts from the end.
std::optional<size_t> index_of(const Value& key, int64_t length) {
  if (!key.is_integral()) return {};
  const int64_t index = key.as_int() < 0 ? key.as_int() + length : key.as_int();
  if (index < 0 || index >= length) return {};
  return static_cast<size_t>(index);
}

}  // namespace

void require_defined(const Value& value) {
  if (value.is(Kind::kUndefined)) fail(value.undefined_message());
}

bool truthy(const Value& value) {
  switch (value.kind()) {
    case Kind::kUndefined:
    case Kind::kNone:
      return false;
    case Kind::kBool:
    case Kind::kInt:
      return value.as_int() != 0;
    case Kind::kFloat:
      return value.as_number() != 0;
    case Kind::kString:
      return !value.as_string().empty();
    case Kind::kList:
    case Kind::kTuple:
      return !value.items().empty();
    case Kind::kDict:
      return !value.as_dict().entries.empty();
    default:
      return true;
  }
}

bool equal(const Value& a, const Value& b, Budget& budget) { return equal_at(a, b, 0, budget); }
bool less(const Value& a, const Value& b, Budget& budget) { return less_at(a, b, 0, budget); }

bool contains(const Value& container, const Value& item, Budget& budget) {
  switch (container.kind()) {
    case Kind::kUndefined:
      return false;
    case Kind::kString:
      if (!item.is(Kind::kString)) fail("'in <string>' requires string as left operand, not " + type_name(item));
      budget.charge_bytes(container.as_string().size());
      return container.as_string().find(item.as_string()) != std::string::npos;
    case Kind::kList:
    case Kind::kTuple:
      return std::any_of(container.items().begin(), container.items().end(),
                         [&](const Value& value) { return equal(value, item, budget); });
    case Kind::kGenerator: {  // reads up to what it looks for
      std::vector<Value>& rest = container.items();
      const auto found =
          std::find_if(rest.begin(), rest.end(), [&](const Value& value) { return equal(value, item, budget); });
      const bool is_there = found != rest.end();
      rest.erase(rest.begin(), is_there ? found + 1 : found);
      return is_there;
    }
    case Kind::kDict:
      if (item.is(Kind::kList) || item.is(Kind::kDict)) fail("unhashable type: " + type_name(item));
      if (item.is(Kind::kTuple)) return false;  // no key is one
      return container.as_dict().find(item) != nullptr;
    default:
      fail("argument of type " + type_name(container) + " is not iterable");
  }
}

bool compare(CompareOp op, const Value& a, const Value& b, Budget& budget) {
  switch (op) {
    case CompareOp::kEqual:
      return equal(a, b, budget);
    case CompareOp::kNotEqual:
      return !equal(a, b, budget);
    case CompareOp::kLess:
      return less(a, b, budget);
    case CompareOp::kLessEqual:
      return less(a, b, budget) || equal(a, b, budget);
    case CompareOp::kGreater:
      return less(b, a, budget);
    case CompareOp::kGreaterEqual:
      return less(b, a, budget) || equal(a, b, budget);
    case CompareOp::kIn:
      return contains(b, a, budget);
    case CompareOp::kNotIn:
      return !contains(b, a, budget);
  }
  return false;
}

Value binary(BinaryOp op, const Value& a, const Value& b, Budget& budget) {
  require_defined(a);
  require_defined(b);
  if (a.is_integral() && b.is_integral()) return integer_binary(op, a.as_int(), b.as_int());
  if (a.is_number() && b.is_number()) return real_binary(op, a.as_number(), b.as_number());
  if (op == BinaryOp::kAdd) return concatenate(a, b, budget);
  if (op == BinaryOp::kMultiply) {
    if ((a.is(Kind::kString) || a.is_sequence()) && b.is_integral()) return repeat(a, b.as_int(), budget);
    if ((b.is(Kind::kString) || b.is_sequence()) && a.is_integral()) return repeat(b, a.as_int(), budget);
  }
  if (op == BinaryOp::kModulo && a.is(Kind::kString)) fail("string formatting with % is not supported; use ~");
  unsupported(op, a, b);
}

Value negate(const Value& value) {
  require_defined(value);
  if (value.is(Kind::kFloat)) return Value::real(-value.as_number());
  if (!value.is_integral()) fail("bad operand type for unary -: " + type_name(value));
  return integer_binary(BinaryOp::kSubtract, 0, value.as_int());
}

int64_t length(const Value& value) {
  switch (value.kind()) {
    case Kind::kUndefined:
      return 0;
    case Kind::kString:
      return static_cast<int64_t>(utf8_length(value.as_string()));
    case Kind::kList:
    case Kind::kTuple:
      return static_cast<int64_t>(value.items().size());
    case Kind::kDict:
      return static_cast<int64_t>(value.as_dict().entries.size());
    default:
      fail("object of type " + type_name(value) + " has no len()");
  }
}

std::vector<Value> iterate(const Value& value, Budget& budget) {
  std::vector<Value> items;
  switch (value.kind()) {
    case Kind::kUndefined:
      return items;
    case Kind::kString:
      budget.charge_entries(value.as_string().size());
      for (const std::string_view character : characters(value.as_string())) {
        items.push_back(Value::string(std::string(character)));
      }
      return items;
    case Kind::kList:
    case Kind::kTuple:
      budget.charge_entries(value.items().size());
      return value.items();
    case Kind::kGenerator:
      budget.charge_entries(value.items().size());
      return std::exchange(value.items(), {});
    case Kind::kDict:
      budget.charge_entries(value.as_dict().entries.size());
      for (const auto& entry : value.as_dict().entries) items.push_back(entry.first);
      return items;
    default:
      fail(type_name(value) + " is not iterable");
  }
}

std::optional<Value> get_item(const Value& container, const Value& key) {
  switch (container.kind()) {
    case Kind::kString: {
      const auto index = index_of(key, length(container));
      if (!index.has_value()) return {};
      const auto at = static_cast<int64_t>(*index);
      return Value::string(std::string(substring(container.as_string(), at, at + 1)));
    }
    case Kind::kList:
    case Kind::kTuple: {
      const auto index = index_of(key, length(container));
      if (!index.has_value()) return {};
      return container.items()[*index];
    }
    case Kind::kDict: {
      const Value* found = container.as_dict().find(key);
      if (found == nullptr) return {};
      return *found;
    }
    default:
      return {};
  }
}

Value slice(const Value& container, std::optional<int64_t> start, std::optional<int64_t> stop, int64_t step,
            Budget& budget) {
  if (step == 0) fail("slice step cannot be zero");
  if (!container.is(Kind::kString) && !container.is_sequence()) fail(type_name(container) + " cannot be sliced");
  const int64_t count = length(container);
  const auto clamp = [count, step](int64_t index) {
    if (index < 0) index = index < -count ? -1 : index + count;
    return step > 0 ? std::clamp<int64_t>(index, 0, count) : std::clamp<int64_t>(index, -1, count - 1);
  };
  const int64_t first = start.has_value() ? clamp(*start) : (step > 0 ? 0 : count - 1);
  const int64_t end = stop.has_value() ? clamp(*stop) : (step > 0 ? count : -1);
  if (container.is(Kind::kString)) budget.charge_bytes(container.as_string().size());
  if (container.is(Kind::kString) && step == 1) {
    return Value::string(std::string(substring(container.as_string(), first, std::max(first, end))));
  }
  // A step past the end must not wrap around.
  const auto more = [&](int64_t at) { return step > 0 ? at < end : at > end; };
  const auto next = [&](int64_t at) {
    int64_t result = 0;
    return __builtin_add_overflow(at, step, &result) ? end : result;
  };
  if (container.is(Kind::kString)) {
    budget.charge_entries(container.as_string().size());
    const std::vector<std::string_view> all = characters(container.as_string());
    std::string text;
    for (int64_t at = first; more(at); at = next(at)) text += all[static_cast<size_t>(at)];
    return Value::string(std::move(text));
  }
  std::vector<Value> items;
  for (int64_t at = first; more(at); at = next(at)) items.push_back(container.items()[static_cast<size_t>(at)]);
  budget.charge_entries(items.size());
  return container.is(Kind::kList) ? Value::list(std::move(items)) : Value::tuple(std::move(items));
}

}  // namespace ft::jinja
