// Private parts of Interpreter, shared by its source files.
#pragma once

#include <utility>

#include "engine/text/jinja/interpreter.h"

namespace ft::jinja {

// Variables of a block. Few, so they are searched one by one.
struct Interpreter::Scope {
  std::shared_ptr<Scope> parent;
  std::vector<std::pair<int, Value>> variables;  // by name id
};

// The `loop` of a for, and the iteration itself. With a condition, entries are tested as they are reached, as in
// Python.
struct Interpreter::LoopObject : Object {
  std::vector<Value> items;
  size_t next_item = 0;
  std::function<bool(const Value&)> passes;  // empty: all do
  int64_t index0 = -1;
  std::optional<Value> after;  // the next entry, when it was looked at early
  Value before, current;

  std::optional<Value> fetch() {
    while (next_item < items.size()) {
      Value item = items[next_item++];
      if (!passes || passes(item)) return item;
    }
    return {};
  }
  const std::optional<Value>& peek() {
    if (!after.has_value()) after = fetch();
    return after;
  }
  bool advance() {
    std::optional<Value> item = after.has_value() ? std::exchange(after, std::nullopt) : fetch();
    if (!item.has_value()) return false;
    ++index0;
    before = std::exchange(current, std::move(*item));
    return true;
  }
  // All entries, those not reached yet included.
  int64_t length() {
    std::vector<Value> rest;
    while (std::optional<Value> item = fetch()) rest.push_back(std::move(*item));
    items = std::move(rest);
    next_item = 0;
    passes = nullptr;
    return static_cast<int64_t>(items.size()) + index0 + 1 + (after.has_value() ? 1 : 0);
  }
};

// Bounds the C++ stack.
class Interpreter::DepthGuard {
 public:
  explicit DepthGuard(Interpreter& interpreter) : interpreter_(interpreter) {
    if (interpreter_.depth_ >= kMaxCallDepth) fail("calls are nested too deeply");
    ++interpreter_.depth_;
  }
  ~DepthGuard() { --interpreter_.depth_; }
  DepthGuard(const DepthGuard&) = delete;
  DepthGuard& operator=(const DepthGuard&) = delete;

 private:
  Interpreter& interpreter_;
};

}  // namespace ft::jinja
