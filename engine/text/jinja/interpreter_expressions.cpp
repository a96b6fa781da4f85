#include "engine/text/jinja/interpreter.h"
#include "engine/text/jinja/interpreter_state.h"
#include "engine/text/jinja/operations.h"
#include "engine/text/jinja/printing.h"

namespace ft::jinja {
namespace {

class LoopFunction : public FunctionObject {
 public:
  explicit LoopFunction(std::function<Value(Interpreter&, const Arguments&)> function)
      : function_(std::move(function)) {}
  Value call(Interpreter& interpreter, const Arguments& arguments) override {
    return function_(interpreter, arguments);
  }

 private:
  std::function<Value(Interpreter&, const Arguments&)> function_;
};

std::optional<int64_t> slice_bound(const Value& value) {
  if (value.is(Kind::kNone)) return {};
  require_defined(value);
  if (!value.is_integral()) fail("slice indices must be integers or None, not " + type_name(value));
  return value.as_int();
}

}  // namespace

Value Interpreter::evaluate(const Expression& expression) {
  const DepthGuard guard(*this);
  budget_.charge(1);
  line_ = expression.line;
  switch (expression.kind) {
    case ExpressionKind::kConstant:
      return expression.constant;
    case ExpressionKind::kName:
      return variable(expression);
    case ExpressionKind::kList:
    case ExpressionKind::kTuple:
      return evaluate_sequence(expression);
    case ExpressionKind::kDict:
      return evaluate_dict(expression);
    case ExpressionKind::kCompare:
      return evaluate_compare(expression);
    case ExpressionKind::kConcatenate:
      return evaluate_concatenate(expression);
    case ExpressionKind::kConditional:
      return evaluate_conditional(expression);
    case ExpressionKind::kSlice:
      return evaluate_slice(expression);
    case ExpressionKind::kCall:
      return evaluate_call(expression);
    case ExpressionKind::kFilter:
      return evaluate_filter(expression);
    case ExpressionKind::kTest:
      return evaluate_test(expression);
    default:
      return evaluate_operator(expression);
  }
}

Value Interpreter::evaluate_operator(const Expression& expression) {
  Value first = evaluate(*expression.operands[0]);
  switch (expression.kind) {
    case ExpressionKind::kNegate:
      return negate(first);
    case ExpressionKind::kPositive:
      return negate(negate(first));
    case ExpressionKind::kNot:
      return Value::boolean(!truthy(first));
    case ExpressionKind::kAnd:
      return truthy(first) ? evaluate(*expression.operands[1]) : first;
    case ExpressionKind::kOr:
      return truthy(first) ? first : evaluate(*expression.operands[1]);
    case ExpressionKind::kAttribute:
      return attribute(first, expression.text);
    case ExpressionKind::kItem:
      return item(first, evaluate(*expression.operands[1]));
    default:
      return binary(expression.op, first, evaluate(*expression.operands[1]), budget_);
  }
}

Value Interpreter::evaluate_sequence(const Expression& expression) {
  std::vector<Value> items;
  budget_.charge_entries(expression.operands.size());
  for (const ExpressionPtr& operand : expression.operands) items.push_back(evaluate(*operand));
  return expression.kind == ExpressionKind::kList ? Value::list(std::move(items)) : Value::tuple(std::move(items));
}

Value Interpreter::evaluate_dict(const Expression& expression) {
  auto dict = std::make_shared<DictObject>();
  budget_.charge_entries(expression.operands.size());
  for (size_t i = 0; i + 1 < expression.operands.size(); i += 2) {
    const Value key = evaluate(*expression.operands[i]);
    if (!key.is(Kind::kString) && !key.is_number() && !key.is(Kind::kNone)) {
      fail("a " + type_name(key) + " cannot be a key");
    }
    dict->set(key, evaluate(*expression.operands[i + 1]));
  }
  return Value::dict(std::move(dict));
}

Value Interpreter::evaluate_compare(const Expression& expression) {
  Value left = evaluate(*expression.operands[0]);
  for (size_t i = 0; i < expression.compare_ops.size(); ++i) {
    Value right = evaluate(*expression.operands[i + 1]);
    if (!compare(expression.compare_ops[i], left, right, budget_)) return Value::boolean(false);
    left = std::move(right);
  }
  return Value::boolean(true);
}

Value Interpreter::evaluate_concatenate(const Expression& expression) {
  std::string text;
  for (const ExpressionPtr& operand : expression.operands) {
    text += to_text(evaluate(*operand), budget_);
    budget_.charge_bytes(text.size());
  }
  return Value::string(std::move(text));
}

Value Interpreter::evaluate_conditional(const Expression& expression) {
  if (truthy(evaluate(*expression.operands[1]))) return evaluate(*expression.operands[0]);
  if (expression.operands.size() == 3) return evaluate(*expression.operands[2]);
  return Value::undefined("the inline if-expression evaluated to false and no else section was defined");
}

Value Interpreter::evaluate_slice(const Expression& expression) {
  const Value container = evaluate(*expression.operands[0]);
  require_defined(container);
  std::optional<int64_t> bounds[3];
  for (size_t i = 0; i < 3; ++i) {
    if (expression.operands[i + 1] != nullptr) bounds[i] = slice_bound(evaluate(*expression.operands[i + 1]));
  }
  if (!container.is(Kind::kString) && !container.is_sequence()) {
    return Value::undefined(type_name(container) + " object has no such slice");
  }
  return slice(container, bounds[0], bounds[1], bounds[2].value_or(1), budget_);
}

void Interpreter::evaluate_arguments(const Expression& expression, Arguments& arguments) {
  for (const ExpressionPtr& argument : expression.arguments) arguments.positional.push_back(evaluate(*argument));
  for (const Keyword& keyword : expression.keywords) {
    arguments.keywords.emplace_back(keyword.name, evaluate(*keyword.value));
  }
}

Value Interpreter::evaluate_call(const Expression& expression) {
  const Value function = evaluate(*expression.operands[0]);
  Arguments arguments;
  evaluate_arguments(expression, arguments);
  line_ = expression.line;
  return call(function, arguments);
}

Value Interpreter::call(const Value& function, const Arguments& arguments) {
  require_defined(function);
  if (!function.is(Kind::kFunction)) fail("a " + type_name(function) + " cannot be called");
  // A copy: the call may replace the variable that holds it.
  // NOLINTNEXTLINE(performance-unnecessary-copy-initialization)
  const std::shared_ptr<Object> keep = function.as_object();
  return static_cast<FunctionObject&>(*keep).call(*this, arguments);
}

Value Interpreter::evaluate_filter(const Expression& expression) {
  const Value input = expression.operands.empty() ? filter_input_ : evaluate(*expression.operands[0]);
  Arguments arguments;
  evaluate_arguments(expression, arguments);
  line_ = expression.line;
  return expression.filter(*this, input, arguments);
}

Value Interpreter::evaluate_test(const Expression& expression) {
  const Value input = evaluate(*expression.operands[0]);
  Arguments arguments;
  evaluate_arguments(expression, arguments);
  line_ = expression.line;
  return Value::boolean(expression.test(*this, input, arguments));
}

// Jinja tries the attributes of the Python object first, then its entries.
Value Interpreter::attribute(const Value& value, const std::string& name) {
  require_defined(value);
  if (value.is(Kind::kLoop)) return loop_attribute(value, name);
  if (!value.is(Kind::kNamespace)) {
    Value method = find_method(value, name);
    if (!method.is(Kind::kUndefined)) return method;
  }
  if (value.is(Kind::kDict) || value.is(Kind::kNamespace)) {
    const Value* found = value.as_dict().find(name);
    if (found != nullptr) return *found;
  }
  std::string message = "'";
  return Value::undefined(
      message.append(type_name(value)).append(" object' has no attribute '").append(name).append("'"));
}

// Entries first, then attributes.
Value Interpreter::item(const Value& value, const Value& key) {
  require_defined(value);
  if (value.is(Kind::kString)) budget_.charge_bytes(value.as_string().size());
  std::optional<Value> found = get_item(value, key);
  if (found.has_value()) return std::move(*found);
  if (key.is(Kind::kString)) return attribute(value, key.as_string());
  return Value::undefined(type_name(value) + " object has no element " + to_repr(key, budget_));
}

Value Interpreter::loop_attribute(const Value& value, const std::string& name) {
  const auto loop = std::static_pointer_cast<LoopObject>(value.as_object());
  const int64_t index = loop->index0 + 1;
  if (name == "index") return Value::integer(index);
  if (name == "index0") return Value::integer(loop->index0);
  if (name == "first") return Value::boolean(loop->index0 == 0);
  if (name == "last") return Value::boolean(!loop->peek().has_value());
  if (name == "length") return Value::integer(loop->length());
  if (name == "revindex") return Value::integer(loop->length() - loop->index0);
  if (name == "revindex0") return Value::integer(loop->length() - index);
  if (name == "depth") return Value::integer(1);
  if (name == "depth0") return Value::integer(0);
  if (name == "previtem") {
    return loop->index0 == 0 ? Value::undefined("there is no previous item") : loop->before;
  }
  if (name == "nextitem") {
    const std::optional<Value>& next = loop->peek();
    return next.has_value() ? *next : Value::undefined("there is no next item");
  }
  if (name == "cycle") {
    return Value::object(Kind::kFunction,
                         std::make_shared<LoopFunction>([loop](Interpreter&, const Arguments& arguments) {
                           if (arguments.positional.empty()) fail("no items for cycling given");
                           return arguments.positional[static_cast<size_t>(loop->index0) % arguments.positional.size()];
                         }));
  }
  std::string message = "'LoopContext' has no attribute '";
  return Value::undefined(message.append(name).append("'"));
}

}  // namespace ft::jinja
