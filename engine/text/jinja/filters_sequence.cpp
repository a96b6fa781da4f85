#include <algorithm>

#include "engine/text/jinja/builtins.h"
#include "engine/text/jinja/interpreter.h"
#include "engine/text/jinja/operations.h"
#include "engine/text/jinja/printing.h"
#include "engine/text/jinja/text_ops.h"

namespace ft::jinja {
namespace {

Value case_folded(const Value& value, bool case_sensitive) {
  return !case_sensitive && value.is(Kind::kString) ? Value::string(lower(value.as_string())) : value;
}

// Stable, by keys made once. std::stable_sort needs an order: values that cannot be compared end the rendering.
std::vector<Value> sorted_by(const std::vector<Value>& items, const std::vector<Value>& keys, bool reverse,
                             Budget& budget) {
  std::vector<size_t> order(items.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return reverse ? less(keys[b], keys[a], budget) : less(keys[a], keys[b], budget);
  });
  std::vector<Value> result;
  result.reserve(order.size());
  for (const size_t i : order) result.push_back(items[i]);
  return result;
}

// What jinja2 compares entries by: a list of one key, or of several ("a,b"). Equal keys are never put in order, so that
// even undefined ones may stand beside each other.
Value sort_key(Interpreter& interpreter, const Value& item, const BoundArguments& bound) {
  const bool case_sensitive = bound.flag_or(1, false);
  if (!bound.has(2) || bound.at(2).is(Kind::kNone)) return Value::list({case_folded(item, case_sensitive)});
  if (!bound.at(2).is(Kind::kString)) {
    return Value::list({case_folded(attribute_path(interpreter, item, bound.at(2)), case_sensitive)});
  }
  std::vector<Value> keys;
  for (const std::string_view path : split(bound.at(2).as_string(), ",", -1)) {
    keys.push_back(case_folded(attribute_path(interpreter, item, Value::string(std::string(path))), case_sensitive));
  }
  return Value::list(std::move(keys));
}

Value list_filter(Interpreter& interpreter, const Value& value, const Arguments& arguments) {
  const BoundArguments bound("list", arguments, {});
  return Value::list(iterate(value, interpreter.budget()));
}

Value first_filter(Interpreter& interpreter, const Value& value, const Arguments& arguments) {
  const BoundArguments bound("first", arguments, {});
  if (value.is(Kind::kGenerator) && !value.items().empty()) {
    Value item = std::move(value.items().front());
    value.items().erase(value.items().begin());
    interpreter.budget().charge(static_cast<int64_t>(value.items().size()));
    return item;
  }
  const std::vector<Value> items = iterate(value, interpreter.budget());
  return items.empty() ? Value::undefined("No first item, sequence was empty.") : items.front();
}

Value last_filter(Interpreter& interpreter, const Value& value, const Arguments& arguments) {
  const BoundArguments bound("last", arguments, {});
  if (value.is(Kind::kGenerator)) fail("a generator cannot be read from its end");
  const std::vector<Value> items = iterate(value, interpreter.budget());
  return items.empty() ? Value::undefined("No last item, sequence was empty.") : items.back();
}

Value items_filter(Interpreter& interpreter, const Value& value, const Arguments& arguments) {
  const BoundArguments bound("items", arguments, {});
  if (value.is(Kind::kUndefined)) return Value::generator({});
  if (!value.is(Kind::kDict)) fail("Can only get item pairs from a mapping.");
  std::vector<Value> pairs;
  interpreter.budget().charge_entries(3 * value.as_dict().entries.size());
  for (const auto& [key, item] : value.as_dict().entries) pairs.push_back(Value::tuple({key, item}));
  return Value::generator(std::move(pairs));
}

Value dictsort_filter(Interpreter& interpreter, const Value& value, const Arguments& arguments) {
  const BoundArguments bound("dictsort", arguments, {"case_sensitive", "by", "reverse"});
  const std::string by = bound.has(1) ? bound.text(1) : "key";
  if (by != "key" && by != "value") fail("You can only sort by either \"key\" or \"value\"");
  require_defined(value);
  if (!value.is(Kind::kDict)) fail("dictsort needs a mapping, not a " + type_name(value));
  interpreter.budget().charge_entries(4 * value.as_dict().entries.size());
  std::vector<Value> pairs, keys;
  for (const auto& [key, item] : value.as_dict().entries) {
    pairs.push_back(Value::tuple({key, item}));
    keys.push_back(case_folded(by == "key" ? key : item, bound.flag_or(0, false)));
  }
  return Value::list(sorted_by(pairs, keys, bound.flag_or(2, false), interpreter.budget()));
}

Value join_filter(Interpreter& interpreter, const Value& value, const Arguments& arguments) {
  const BoundArguments bound("join", arguments, {"d", "attribute"});
  const std::string separator = bound.has(0) ? to_text(bound.at(0), interpreter.budget()) : "";
  std::string text;
  bool first = true;
  for (const Value& item : iterate(value, interpreter.budget())) {
    if (!first) text += separator;
    first = false;
    text += to_text(bound.has(1) ? attribute_path(interpreter, item, bound.at(1)) : item, interpreter.budget());
    interpreter.budget().charge_bytes(separator.size());
    if (text.size() > kMaxOutputBytes) interpreter.budget().charge_bytes(text.size());
  }
  return Value::string(std::move(text));
}

Value reverse_filter(Interpreter& interpreter, const Value& value, const Arguments& arguments) {
  const BoundArguments bound("reverse", arguments, {});
  std::vector<Value> items = iterate(value, interpreter.budget());
  std::reverse(items.begin(), items.end());
  if (value.is(Kind::kGenerator)) return Value::list(std::move(items));  // Python cannot walk it from its end
  if (!value.is(Kind::kString)) return Value::generator(std::move(items));
  std::string text;
  for (const Value& item : items) text += item.as_string();
  return Value::string(std::move(text));
}

Value sort_filter(Interpreter& interpreter, const Value& value, const Arguments& arguments) {
  const BoundArguments bound("sort", arguments, {"reverse", "case_sensitive", "attribute"});
  const std::vector<Value> items = iterate(value, interpreter.budget());
  std::vector<Value> keys;
  keys.reserve(items.size());
  for (const Value& item : items) keys.push_back(sort_key(interpreter, item, bound));
  return Value::list(sorted_by(items, keys, bound.flag_or(0, false), interpreter.budget()));
}

Value unique_filter(Interpreter& interpreter, const Value& value, const Arguments& arguments) {
  const BoundArguments bound("unique", arguments, {"case_sensitive", "attribute"});
  std::vector<Value> items, keys;
  for (const Value& item : iterate(value, interpreter.budget())) {
    const Value key =
        case_folded(bound.has(1) ? attribute_path(interpreter, item, bound.at(1)) : item, bound.flag_or(0, false));
    const bool seen =
        std::any_of(keys.begin(), keys.end(), [&](const Value& k) { return equal(k, key, interpreter.budget()); });
    if (seen) continue;
    items.push_back(item);
    keys.push_back(key);
  }
  return Value::generator(std::move(items));
}

template <bool want_largest>
Value extreme_filter(Interpreter& interpreter, const Value& value, const Arguments& arguments) {
  const BoundArguments bound("min or max", arguments, {"case_sensitive", "attribute"});
  Value best = Value::undefined("No aggregated item, sequence was empty.");
  Value best_key;
  for (const Value& item : iterate(value, interpreter.budget())) {
    const Value key =
        case_folded(bound.has(1) ? attribute_path(interpreter, item, bound.at(1)) : item, bound.flag_or(0, false));
    const bool better = best_key.is(Kind::kUndefined) || (want_largest ? less(best_key, key, interpreter.budget())
                                                                       : less(key, best_key, interpreter.budget()));
    if (!better) continue;
    best = item;
    best_key = key;
  }
  return best;
}

Value sum_filter(Interpreter& interpreter, const Value& value, const Arguments& arguments) {
  const BoundArguments bound("sum", arguments, {"attribute", "start"});
  Value total = bound.value(1, Value::integer(0));
  const bool by_attribute = bound.has(0) && !bound.at(0).is(Kind::kNone);
  for (const Value& item : iterate(value, interpreter.budget())) {
    const Value part = by_attribute ? attribute_path(interpreter, item, bound.at(0)) : item;
    total = binary(BinaryOp::kAdd, total, part, interpreter.budget());
  }
  return total;
}

// map("filter", ...) or map(attribute="name", default=...).
Value map_filter(Interpreter& interpreter, const Value& value, const Arguments& arguments) {
  std::vector<Value> results;
  const std::vector<Value> items = iterate(value, interpreter.budget());
  if (arguments.positional.empty()) {
    const BoundArguments bound("map", arguments, {"attribute", "default"});
    for (const Value& item : items) {
      const Value part = attribute_path(interpreter, item, bound.at(0));
      results.push_back(part.is(Kind::kUndefined) ? bound.value(1, part) : part);
    }
    return Value::generator(std::move(results));
  }
  if (!arguments.positional.front().is(Kind::kString)) fail("map needs the name of a filter");
  const Filter filter = find_filter(arguments.positional.front().as_string());
  if (filter == nullptr) fail("map: no filter named '" + arguments.positional.front().as_string() + "'");
  const Arguments rest{{arguments.positional.begin() + 1, arguments.positional.end()}, arguments.keywords};
  for (const Value& item : items) results.push_back(filter(interpreter, item, rest));
  return Value::generator(std::move(results));
}

// select, reject, selectattr, rejectattr: entries whose (attribute's) test gives `keep`; without a test, truth.
template <bool by_attribute, bool keep>
Value select_filter(Interpreter& interpreter, const Value& value, const Arguments& arguments) {
  size_t used = 0;
  if (by_attribute && arguments.positional.empty()) fail("selectattr needs the name of an attribute");
  const Value attribute = by_attribute ? arguments.positional[used++] : Value();
  Test test = nullptr;
  if (arguments.positional.size() > used) {
    const Value& name = arguments.positional[used++];
    test = name.is(Kind::kString) ? find_test(name.as_string()) : nullptr;
    if (test == nullptr) fail("select: no test of that name");
  }
  const Arguments rest{{arguments.positional.begin() + static_cast<std::ptrdiff_t>(used), arguments.positional.end()},
                       arguments.keywords};
  std::vector<Value> results;
  for (const Value& item : iterate(value, interpreter.budget())) {
    interpreter.budget().charge(1);
    const Value tested = by_attribute ? attribute_path(interpreter, item, attribute) : item;
    if ((test != nullptr ? test(interpreter, tested, rest) : truthy(tested)) == keep) results.push_back(item);
  }
  return Value::generator(std::move(results));
}

Value batch_filter(Interpreter& interpreter, const Value& value, const Arguments& arguments) {
  const BoundArguments bound("batch", arguments, {"linecount", "fill_with"});
  const int64_t size = bound.integer(0);
  if (size < 1 || size > kMaxRange) fail("batch size must be 1 to " + std::to_string(kMaxRange));
  std::vector<Value> batches, batch;
  for (const Value& item : iterate(value, interpreter.budget())) {
    if (static_cast<int64_t>(batch.size()) == size) batches.push_back(Value::list(std::exchange(batch, {})));
    batch.push_back(item);
  }
  if (batch.empty()) return Value::generator(std::move(batches));
  if (bound.has(1) && !bound.at(1).is(Kind::kNone)) {
    interpreter.budget().charge_entries(static_cast<size_t>(size));
    batch.resize(static_cast<size_t>(size), bound.at(1));
  }
  batches.push_back(Value::list(std::move(batch)));
  return Value::generator(std::move(batches));
}

constexpr std::pair<std::string_view, Filter> kFilters[] = {
    {"batch", batch_filter},
    {"dictsort", dictsort_filter},
    {"first", first_filter},
    {"items", items_filter},
    {"join", join_filter},
    {"last", last_filter},
    {"list", list_filter},
    {"map", map_filter},
    {"max", extreme_filter<true>},
    {"min", extreme_filter<false>},
    {"reject", select_filter<false, false>},
    {"rejectattr", select_filter<true, false>},
    {"reverse", reverse_filter},
    {"select", select_filter<false, true>},
    {"selectattr", select_filter<true, true>},
    {"sort", sort_filter},
    {"sum", sum_filter},
    {"unique", unique_filter},
};

}  // namespace

Value attribute_path(Interpreter& interpreter, const Value& value, const Value& path) {
  if (path.is_integral()) return interpreter.item(value, path);
  if (!path.is(Kind::kString)) fail("an attribute is named by a string or an integer");
  Value current = value;
  for (const std::string_view part : split(path.as_string(), ".", -1)) {
    const bool is_index =
        !part.empty() && part.size() < 10 && part.find_first_not_of("0123456789") == std::string_view::npos;
    const std::string name(part);
    current = interpreter.item(current, is_index ? Value::integer(std::stoll(name)) : Value::string(name));
  }
  return current;
}

Filter find_sequence_filter(std::string_view name) {
  for (const auto& [candidate, filter] : kFilters) {
    if (candidate == name) return filter;
  }
  return nullptr;
}

}  // namespace ft::jinja
