// Python's operators on values. What Python would refuse with a TypeError is a Failure.
#pragma once

#include <optional>

#include "engine/text/jinja/budget.h"
#include "engine/text/jinja/value.h"

namespace ft::jinja {

enum class BinaryOp { kAdd, kSubtract, kMultiply, kDivide, kFloorDivide, kModulo, kPower };
enum class CompareOp { kEqual, kNotEqual, kLess, kLessEqual, kGreater, kGreaterEqual, kIn, kNotIn };

bool truthy(const Value& value);
bool equal(const Value& a, const Value& b, Budget& budget);
bool less(const Value& a, const Value& b, Budget& budget);
bool contains(const Value& container, const Value& item, Budget& budget);
bool compare(CompareOp op, const Value& a, const Value& b, Budget& budget);
Value binary(BinaryOp op, const Value& a, const Value& b, Budget& budget);
Value negate(const Value& value);

int64_t length(const Value& value);  // len(value)
// What a for loop sees: entries, keys, characters; nothing for undefined.
std::vector<Value> iterate(const Value& value, Budget& budget);
// container[key] without falling back to attributes; nothing when there is no such entry.
std::optional<Value> get_item(const Value& container, const Value& key);
Value slice(const Value& container, std::optional<int64_t> start, std::optional<int64_t> stop, int64_t step,
            Budget& budget);

// Uses of undefined that Jinja refuses end here.
void require_defined(const Value& value);

}  // namespace ft::jinja
