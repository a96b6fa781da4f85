// A compiled template: statements and expressions, immutable.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "engine/text/jinja/operations.h"
#include "engine/text/jinja/value.h"

namespace ft::jinja {

class Interpreter;
struct Arguments;
using Filter = Value (*)(Interpreter& interpreter, const Value& input, const Arguments& arguments);
using Test = bool (*)(Interpreter& interpreter, const Value& input, const Arguments& arguments);

struct Expression;
struct Statement;
using ExpressionPtr = std::unique_ptr<Expression>;
using Block = std::vector<std::unique_ptr<Statement>>;

enum class ExpressionKind {
  kConstant,
  kName,         // name_id
  kList,         // operands
  kTuple,        // operands
  kDict,         // operands: key, value, key, value, ...
  kNegate,       // operands[0]
  kPositive,     // operands[0]
  kNot,          // operands[0]
  kAnd,          // operands[0], operands[1]
  kOr,           // operands[0], operands[1]
  kBinary,       // operands[0] op operands[1]
  kCompare,      // operands[0] compare_ops[0] operands[1] compare_ops[1] ...
  kConcatenate,  // operands
  kConditional,  // operands: value, condition, and the value of else when there is one
  kAttribute,    // operands[0].text
  kItem,         // operands[0][operands[1]]
  kSlice,        // operands[0][operands[1]:operands[2]:operands[3]], null where left out
  kCall,         // operands[0](arguments)
  kFilter,       // operands[0] | filter(arguments); no operand: the body of a block
  kTest,         // operands[0] is test(arguments)
};

struct Keyword {
  std::string name;
  ExpressionPtr value;
};

struct Expression {
  ExpressionKind kind = ExpressionKind::kConstant;
  int line = 0;
  int depth = 1;  // of the tree below, itself included
  std::vector<ExpressionPtr> operands;
  std::vector<ExpressionPtr> arguments;
  std::vector<Keyword> keywords;
  std::vector<CompareOp> compare_ops;
  BinaryOp op = BinaryOp::kAdd;
  std::string text;  // of names and attributes; name of a filter or test
  int name_id = -1;
  Filter filter = nullptr;
  Test test = nullptr;
  // Of constants. A string or number is shared by renderings on several threads and never changed.
  Value constant;
};

// What a for, set or with assigns to: a name, names in parentheses, or an attribute of a namespace.
struct Target {
  int name_id = -1;
  std::string attribute;      // not empty: name.attribute
  std::vector<Target> parts;  // not empty: unpacks
  bool unpacks = false;
  int line = 0;
};

enum class StatementKind {
  kText,
  kOutput,
  kIf,
  kFor,
  kSet,
  kSetBlock,
  kMacro,
  kCallBlock,
  kFilterBlock,
  kWith,
  kScope,  // a block whose assignments stay inside
  kBreak,
  kContinue,
};

struct Branch {
  ExpressionPtr condition;  // null: else
  Block body;
};

struct Parameter {
  std::string name;
  int name_id = -1;
  ExpressionPtr fallback;  // null: none
};

struct MacroDefinition {
  std::string name;
  std::vector<Parameter> parameters;
  Block body;
  bool uses_caller = false, uses_varargs = false, uses_kwargs = false;
};

struct Statement {
  StatementKind kind = StatementKind::kText;
  int line = 0;
  std::string text;                   // kText
  ExpressionPtr expression;           // output, iterated, assigned, called, filter chain
  ExpressionPtr condition;            // the `if` of a for
  std::vector<Branch> branches;       // kIf
  std::vector<Target> targets;        // kFor, kSet, kSetBlock: one; kWith: any
  std::vector<ExpressionPtr> values;  // kWith
  Block body, else_body;
  std::unique_ptr<MacroDefinition> macro;  // kMacro, kCallBlock
};

// Names become small integers, so that scopes compare integers.
class NameTable {
 public:
  int id(const std::string& name);
  int find(const std::string& name) const;  // -1 when the template never mentions it
  const std::string& name(int id) const { return names_[static_cast<size_t>(id)]; }

 private:
  std::vector<std::string> names_;
  std::unordered_map<std::string, int> ids_;
};

struct CompiledTemplate {
  Block body;
  NameTable names;
};

}  // namespace ft::jinja
