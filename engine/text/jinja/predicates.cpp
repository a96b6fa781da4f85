#include "engine/text/jinja/builtins.h"
#include "engine/text/jinja/interpreter.h"
#include "engine/text/jinja/operations.h"
#include "engine/text/jinja/printing.h"
#include "engine/text/jinja/text_ops.h"

namespace ft::jinja {
namespace {

bool is_case(Interpreter& interpreter, const Value& value, std::string (*fold)(std::string_view),
             std::string (*other)(std::string_view)) {
  // str.isupper: cased characters, all of that case.
  const std::string text = to_text(value, interpreter.budget());
  return text == fold(text) && text != other(text);
}

bool remainder_is(const Value& value, int64_t divisor, int64_t remainder, Budget& budget) {
  return equal(binary(BinaryOp::kModulo, value, Value::integer(divisor), budget), Value::integer(remainder), budget);
}

template <CompareOp op>
bool compare_test(Interpreter& interpreter, const Value& value, const Arguments& arguments) {
  const BoundArguments bound("test", arguments, {"other"});
  return compare(op, value, bound.at(0), interpreter.budget());
}

template <bool (*predicate)(const Value&)>
bool kind_test(Interpreter&, const Value& value, const Arguments& arguments) {
  const BoundArguments bound("test", arguments, {});
  return predicate(value);
}

bool is_same(const Value& a, const Value& b) {
  if (a.kind() != b.kind()) return false;
  if (a.is_integral()) return a.as_int() == b.as_int();
  return a.is(Kind::kFloat) ? a.as_number() == b.as_number() : a.as_object() == b.as_object();
}

struct NamedTest {
  std::string_view name;
  Test test;
};

constexpr NamedTest kTests[] = {
    {"defined", kind_test<[](const Value& v) { return !v.is(Kind::kUndefined); }>},
    {"undefined", kind_test<[](const Value& v) { return v.is(Kind::kUndefined); }>},
    {"none", kind_test<[](const Value& v) { return v.is(Kind::kNone); }>},
    {"boolean", kind_test<[](const Value& v) { return v.is(Kind::kBool); }>},
    {"true", kind_test<[](const Value& v) { return v.is(Kind::kBool) && v.as_bool(); }>},
    {"false", kind_test<[](const Value& v) { return v.is(Kind::kBool) && !v.as_bool(); }>},
    {"integer", kind_test<[](const Value& v) { return v.is(Kind::kInt); }>},
    {"float", kind_test<[](const Value& v) { return v.is(Kind::kFloat); }>},
    {"number", kind_test<[](const Value& v) { return v.is_number(); }>},
    {"string", kind_test<[](const Value& v) { return v.is(Kind::kString); }>},
    {"mapping", kind_test<[](const Value& v) { return v.is(Kind::kDict); }>},
    // Python's Undefined can be iterated and has a length, so it is both.
    {"iterable", kind_test<[](const Value& v) {
       return v.is_sequence() || v.is(Kind::kString) || v.is(Kind::kDict) || v.is(Kind::kUndefined) ||
              v.is(Kind::kLoop) || v.is(Kind::kGenerator);
     }>},
    {"sequence", kind_test<[](const Value& v) {
       return v.is_sequence() || v.is(Kind::kString) || v.is(Kind::kDict) || v.is(Kind::kUndefined);
     }>},
    {"callable", kind_test<[](const Value& v) { return v.is(Kind::kFunction) || v.is(Kind::kUndefined); }>},
    {"escaped", kind_test<[](const Value& v) { return v.is_markup(); }>},
    {"odd", [](Interpreter& i, const Value& v, const Arguments&) { return remainder_is(v, 2, 1, i.budget()); }},
    {"even", [](Interpreter& i, const Value& v, const Arguments&) { return remainder_is(v, 2, 0, i.budget()); }},
    {"divisibleby",
     [](Interpreter& i, const Value& v, const Arguments& a) {
       return remainder_is(v, BoundArguments("divisibleby", a, {"num"}).integer(0), 0, i.budget());
     }},
    {"lower", [](Interpreter& i, const Value& v, const Arguments&) { return is_case(i, v, lower, upper); }},
    {"upper", [](Interpreter& i, const Value& v, const Arguments&) { return is_case(i, v, upper, lower); }},
    {"sameas", [](Interpreter&, const Value& v,
                  const Arguments& a) { return is_same(v, BoundArguments("sameas", a, {"other"}).at(0)); }},
    {"in", compare_test<CompareOp::kIn>},
    {"==", compare_test<CompareOp::kEqual>},
    {"eq", compare_test<CompareOp::kEqual>},
    {"equalto", compare_test<CompareOp::kEqual>},
    {"!=", compare_test<CompareOp::kNotEqual>},
    {"ne", compare_test<CompareOp::kNotEqual>},
    {">", compare_test<CompareOp::kGreater>},
    {"gt", compare_test<CompareOp::kGreater>},
    {"greaterthan", compare_test<CompareOp::kGreater>},
    {">=", compare_test<CompareOp::kGreaterEqual>},
    {"ge", compare_test<CompareOp::kGreaterEqual>},
    {"<", compare_test<CompareOp::kLess>},
    {"lt", compare_test<CompareOp::kLess>},
    {"lessthan", compare_test<CompareOp::kLess>},
    {"<=", compare_test<CompareOp::kLessEqual>},
    {"le", compare_test<CompareOp::kLessEqual>},
};

}  // namespace

Test find_test(std::string_view name) {
  for (const NamedTest& candidate : kTests) {
    if (candidate.name == name) return candidate.test;
  }
  return nullptr;
}

}  // namespace ft::jinja
