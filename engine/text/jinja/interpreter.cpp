#include "engine/text/jinja/interpreter.h"

#include <nlohmann/json.hpp>

#include "engine/text/jinja/interpreter_state.h"
#include "engine/text/jinja/operations.h"
#include "engine/text/jinja/printing.h"

namespace ft::jinja {
namespace {

constexpr std::string_view kImplicit[] = {"caller", "varargs", "kwargs"};

}  // namespace

// A macro sees the variables of the block that defines it. It does not keep that block alive: the block's variables
// hold the macro.
class MacroFunction : public FunctionObject {
 public:
  MacroFunction(const MacroDefinition& macro, std::weak_ptr<Interpreter::Scope> scope)
      : macro_(macro), scope_(std::move(scope)) {}

  Value call(Interpreter& interpreter, const Arguments& arguments) override {
    const std::shared_ptr<Interpreter::Scope> scope = scope_.lock();
    if (scope == nullptr) fail("macro '" + macro_.name + "' is called after the block that defines it");
    return interpreter.run_macro(macro_, scope, arguments);
  }

 private:
  const MacroDefinition& macro_;
  std::weak_ptr<Interpreter::Scope> scope_;
};

Interpreter::Interpreter(const CompiledTemplate& compiled, const OrderedJson& variables, int64_t now_unix_seconds)
    : template_(compiled), now_unix_seconds_(now_unix_seconds), scope_(std::make_shared<Scope>()) {
  for (const auto& [name, value] : variables.items()) {
    const int id = compiled.names.find(name);
    if (id >= 0) scope_->variables.emplace_back(id, Value::from_json(value));
  }
}

Interpreter::~Interpreter() {
  for (const Value& value : changed_) {
    if (value.is_sequence()) {
      value.items().clear();
    } else {
      value.as_dict().clear();
    }
  }
}

std::string Interpreter::run() {
  std::string text;
  output_ = &text;
  run_block(template_.body);
  output_ = nullptr;
  return text;
}

void Interpreter::will_change(const Value& container) {
  budget_.charge(kWorkPerEntry);
  if (changed_.empty() || changed_.back().as_object() != container.as_object()) changed_.push_back(container);
}

void Interpreter::write(std::string_view text) {
  if (output_->size() + text.size() > kMaxOutputBytes) {
    fail("the text is longer than " + std::to_string(kMaxOutputBytes) + " bytes");
  }
  budget_.charge_bytes(text.size());
  *output_ += text;
}

Interpreter::Flow Interpreter::run_block(const Block& block) {
  for (const auto& statement : block) {
    const Flow flow = run_statement(*statement);
    if (flow != Flow::kNext) return flow;
  }
  return Flow::kNext;
}

Interpreter::Flow Interpreter::run_statement(const Statement& statement) {
  const DepthGuard guard(*this);
  budget_.charge(1);
  line_ = statement.line;
  switch (statement.kind) {
    case StatementKind::kText:
      write(statement.text);
      break;
    case StatementKind::kOutput:
      write(to_text(evaluate(*statement.expression), budget_));
      break;
    case StatementKind::kIf:
      return run_if(statement);
    case StatementKind::kFor:
      run_for(statement);
      break;
    case StatementKind::kSet:
      assign(statement.targets.front(), evaluate(*statement.expression));
      break;
    case StatementKind::kSetBlock: {
      Value value = Value::string(capture(statement.body));
      if (statement.expression != nullptr) {
        filter_input_ = std::move(value);
        value = evaluate(*statement.expression);
      }
      assign(statement.targets.front(), value);
      break;
    }
    case StatementKind::kMacro: {
      auto macro = std::make_shared<MacroFunction>(*statement.macro, scope_);
      set_variable(template_.names.find(statement.macro->name), Value::object(Kind::kFunction, std::move(macro)));
      break;
    }
    case StatementKind::kCallBlock:
      run_call_block(statement);
      break;
    case StatementKind::kFilterBlock:
      filter_input_ = Value::string(capture(statement.body));
      write(to_text(evaluate(*statement.expression), budget_));
      break;
    case StatementKind::kWith:
      run_with(statement);
      break;
    case StatementKind::kScope:
      return run_body_in_scope(statement.body);
    case StatementKind::kBreak:
      return Flow::kBreak;
    case StatementKind::kContinue:
      return Flow::kContinue;
  }
  return Flow::kNext;
}

Interpreter::Flow Interpreter::run_if(const Statement& statement) {
  for (const Branch& branch : statement.branches) {
    if (branch.condition == nullptr || truthy(evaluate(*branch.condition))) return run_block(branch.body);
  }
  return Flow::kNext;
}

Interpreter::Flow Interpreter::run_body_in_scope(const Block& block) {
  const std::shared_ptr<Scope> outer = scope_;
  scope_ = std::make_shared<Scope>(Scope{outer, {}});
  const Flow flow = run_block(block);
  scope_ = outer;
  return flow;
}

void Interpreter::run_for(const Statement& statement) {
  const std::shared_ptr<Scope> outer = scope_;
  const auto loop = std::make_shared<LoopObject>();
  const Value iterated = evaluate(*statement.expression);
  loop->items = iterate(iterated, budget_);
  if (statement.condition != nullptr) {
    loop->passes = [this, &statement, outer](const Value& item) {
      const std::shared_ptr<Scope> current = scope_;
      scope_ = std::make_shared<Scope>(Scope{outer, {}});
      assign(statement.targets.front(), item);
      const bool passes = truthy(evaluate(*statement.condition));
      scope_ = current;
      return passes;
    };
  }
  // The condition holds the scope, whose variables may come to hold the loop.
  struct Release {
    LoopObject& loop;
    ~Release() { loop.passes = nullptr; }
  } const release{*loop};
  const int loop_id = template_.names.find("loop");
  bool one_ended = false;  // jinja2 runs else where no body came to its end: after break and continue too
  while (loop->advance()) {
    budget_.charge(1);
    scope_ = std::make_shared<Scope>(Scope{outer, {}});
    set_variable(loop_id, Value::object(Kind::kLoop, loop));
    assign(statement.targets.front(), loop->current);
    const Flow flow = run_block(statement.body);
    if (flow == Flow::kBreak) break;
    one_ended |= flow == Flow::kNext;
  }
  scope_ = outer;
  if (!one_ended) run_body_in_scope(statement.else_body);
}

void Interpreter::run_with(const Statement& statement) {
  std::vector<Value> values;
  for (const ExpressionPtr& value : statement.values) values.push_back(evaluate(*value));
  const std::shared_ptr<Scope> outer = scope_;
  scope_ = std::make_shared<Scope>(Scope{outer, {}});
  for (size_t i = 0; i < values.size(); ++i) assign(statement.targets[i], values[i]);
  run_block(statement.body);
  scope_ = outer;
}

void Interpreter::run_call_block(const Statement& statement) {
  const Expression& call_expression = *statement.expression;
  const Value function = evaluate(*call_expression.operands.front());
  Arguments arguments;
  evaluate_arguments(call_expression, arguments);
  arguments.keywords.emplace_back(
      "caller", Value::object(Kind::kFunction, std::make_shared<MacroFunction>(*statement.macro, scope_)));
  write(to_text(call(function, arguments), budget_));
}

std::string Interpreter::capture(const Block& block) {
  std::string text;
  std::string* const outer = std::exchange(output_, &text);
  run_body_in_scope(block);
  output_ = outer;
  return text;
}

Value Interpreter::run_macro(const MacroDefinition& macro, const std::shared_ptr<Scope>& scope,
                             const Arguments& arguments) {
  const DepthGuard guard(*this);
  const std::shared_ptr<Scope> caller_scope = std::exchange(scope_, std::make_shared<Scope>(Scope{scope, {}}));
  bind_parameters(macro, arguments);
  std::string text;
  std::string* const outer = std::exchange(output_, &text);
  run_block(macro.body);
  output_ = outer;
  scope_ = caller_scope;
  return Value::string(std::move(text));
}

void Interpreter::bind_parameters(const MacroDefinition& macro, const Arguments& arguments) {
  std::vector<bool> used(arguments.keywords.size());
  for (size_t i = 0; i < macro.parameters.size(); ++i) {
    const Parameter& parameter = macro.parameters[i];
    const Value* given = i < arguments.positional.size() ? &arguments.positional[i] : nullptr;
    for (size_t k = 0; given == nullptr && k < used.size(); ++k) {
      if (used[k] || arguments.keywords[k].first != parameter.name) continue;
      used[k] = true;
      given = &arguments.keywords[k].second;
    }
    if (given != nullptr) {
      set_variable(parameter.name_id, *given);
    } else if (parameter.fallback != nullptr) {
      set_variable(parameter.name_id, evaluate(*parameter.fallback));
    } else {
      set_variable(parameter.name_id, Value::undefined("parameter '" + parameter.name + "' was not provided"));
    }
  }
  auto rest = std::make_shared<DictObject>();
  for (size_t k = 0; k < used.size(); ++k) {
    const auto& [name, value] = arguments.keywords[k];
    if (used[k]) continue;
    if (name == kImplicit[0] && macro.uses_caller) {
      set_variable(template_.names.find(name), value);
    } else if (macro.uses_kwargs) {
      rest->set(Value::string(name), value);
    } else {
      fail("macro '" + macro.name + "' takes no keyword argument '" + name + "'");
    }
  }
  if (macro.uses_kwargs) set_variable(template_.names.find("kwargs"), Value::dict(std::move(rest)));
  std::vector<Value> more;
  for (size_t i = macro.parameters.size(); i < arguments.positional.size(); ++i)
    more.push_back(arguments.positional[i]);
  if (!more.empty() && !macro.uses_varargs) {
    fail("macro '" + macro.name + "' takes not more than " + std::to_string(macro.parameters.size()) + " arguments");
  }
  if (macro.uses_varargs) set_variable(template_.names.find("varargs"), Value::tuple(std::move(more)));
}

void Interpreter::set_variable(int name_id, Value value) {
  for (auto& [id, variable] : scope_->variables) {
    if (id != name_id) continue;
    variable = std::move(value);
    return;
  }
  scope_->variables.emplace_back(name_id, std::move(value));
}

Value Interpreter::variable(const Expression& name) const {
  for (const Scope* scope = scope_.get(); scope != nullptr; scope = scope->parent.get()) {
    for (const auto& [id, value] : scope->variables) {
      if (id == name.name_id) return value;
    }
  }
  Value global = find_global(name.text);
  return global.is(Kind::kUndefined) ? Value::undefined("'" + name.text + "' is undefined") : global;
}

void Interpreter::assign(const Target& target, const Value& value) {
  if (target.unpacks) {
    const std::vector<Value> items = iterate(value, budget_);
    if (items.size() != target.parts.size()) {
      fail("cannot unpack " + std::to_string(items.size()) + " values into " + std::to_string(target.parts.size()));
    }
    for (size_t i = 0; i < items.size(); ++i) assign(target.parts[i], items[i]);
    return;
  }
  if (target.attribute.empty()) return set_variable(target.name_id, value);
  Expression name;
  name.name_id = target.name_id;
  name.text = template_.names.name(target.name_id);
  const Value object = variable(name);
  if (!object.is(Kind::kNamespace)) fail("cannot assign attribute on non-namespace object");
  if (!value.is(Kind::kString) && !value.is_number()) will_change(object);
  object.as_dict().set(Value::string(target.attribute), value);
}

}  // namespace ft::jinja
