// Renders a CompiledTemplate. One Interpreter per rendering; it lives on one thread.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/text/jinja/ast.h"
#include "engine/text/jinja/budget.h"
#include "engine/text/jinja/builtins.h"
#include "engine/text/jinja/value.h"

namespace ft::jinja {

class Interpreter {
 public:
  // now_unix_seconds: the time that strftime_now shows.
  Interpreter(const CompiledTemplate& compiled, const OrderedJson& variables, int64_t now_unix_seconds);
  ~Interpreter();
  Interpreter(const Interpreter&) = delete;
  Interpreter& operator=(const Interpreter&) = delete;

  std::string run();                  // throws Failure
  int line() const { return line_; }  // of what was evaluated last

  // For builtins.
  Budget& budget() { return budget_; }
  int64_t now_unix_seconds() const { return now_unix_seconds_; }
  Value call(const Value& function, const Arguments& arguments);
  Value attribute(const Value& value, const std::string& name);  // value.name
  Value item(const Value& value, const Value& key);              // value[key]
  // To be called before values are put into an existing container: it may come to contain itself, and is then emptied
  // at the end, or nothing would free it.
  void will_change(const Value& container);

 private:
  friend class MacroFunction;
  struct Scope;
  struct LoopObject;
  class DepthGuard;
  enum class Flow { kNext, kBreak, kContinue };

  // Statements.
  Flow run_block(const Block& block);
  Flow run_statement(const Statement& statement);
  Flow run_if(const Statement& statement);
  void run_for(const Statement& statement);
  Flow run_body_in_scope(const Block& block);
  void run_with(const Statement& statement);
  void run_call_block(const Statement& statement);
  std::string capture(const Block& block);  // what it prints, in a scope of its own
  Value run_macro(const MacroDefinition& macro, const std::shared_ptr<Scope>& scope, const Arguments& arguments);
  void bind_parameters(const MacroDefinition& macro, const Arguments& arguments);
  void write(std::string_view text);

  // Variables.
  void assign(const Target& target, const Value& value);
  void set_variable(int name_id, Value value);
  Value variable(const Expression& name) const;

  // Expressions.
  Value evaluate(const Expression& expression);
  Value evaluate_operator(const Expression& expression);
  Value evaluate_sequence(const Expression& expression);
  Value evaluate_dict(const Expression& expression);
  Value evaluate_compare(const Expression& expression);
  Value evaluate_concatenate(const Expression& expression);
  Value evaluate_conditional(const Expression& expression);
  Value evaluate_slice(const Expression& expression);
  Value evaluate_call(const Expression& expression);
  Value evaluate_filter(const Expression& expression);
  Value evaluate_test(const Expression& expression);
  void evaluate_arguments(const Expression& expression, Arguments& arguments);
  Value loop_attribute(const Value& value, const std::string& name);

  const CompiledTemplate& template_;
  const int64_t now_unix_seconds_;
  Budget budget_;
  std::shared_ptr<Scope> scope_;
  std::string* output_ = nullptr;
  Value filter_input_;  // of a filter without operand: the text of its block
  std::vector<Value> changed_;
  int depth_ = 0;
  int line_ = 1;
};

}  // namespace ft::jinja
