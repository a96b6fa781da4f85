// What ends a rendering early: a mistake of the template or its variables, or the work that it may do.
#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include "engine/text/jinja/limits.h"

namespace ft::jinja {

// Thrown inside a rendering; ChatTemplate::render adds the line and makes it an Error(kRequest).
struct Failure {
  std::string message;
  bool raised_by_template = false;  // raise_exception(message)
};

[[noreturn]] inline void fail(std::string message) { throw Failure{std::move(message), false}; }

class Budget {
 public:
  void charge(int64_t work) {
    work_ += work;
    if (work_ > kMaxWork) fail("the template does more work than is allowed");
  }
  void charge_bytes(size_t bytes) {
    if (bytes > kMaxOutputBytes) fail("a string is longer than " + std::to_string(kMaxOutputBytes) + " bytes");
    charge(static_cast<int64_t>(bytes) / kBytesPerWork);
  }
  void charge_entries(size_t entries) {
    charge(entries > static_cast<size_t>(kMaxWork) ? kMaxWork + 1 : static_cast<int64_t>(entries) * kWorkPerEntry);
  }

 private:
  int64_t work_ = 0;
};

}  // namespace ft::jinja
