// The one exception type of the project, and the check for bugs.
//
// An Error says what failed, the value that caused it, what is allowed, and what to do. It is thrown at start-up and
// per request, never on the token path. Programs map its kind to an exit code; the server maps it to an HTTP status.
#pragma once

#include <stdexcept>
#include <string>
#include <string_view>

namespace ft {

enum class ErrorKind {
  kUsage,        // the command line or a profile was refused: exit code 2
  kFailed,       // the work could not be done: exit code 1
  kRequest,      // one request is wrong (HTTP 400); the server goes on
  kCapacity,     // one request cannot be taken now (HTTP 503) or ever (HTTP 413)
  kInterrupted,  // the user asked to stop: exit code 130
  kNotWritten,   // an output could not be written, before the work or after it: exit code 4
};

struct ErrorParts {
  std::string what;          // what failed: "cannot read config.json"
  std::string value = {};    // the offending value, shown in quotes; empty: none
  std::string allowed = {};  // what is allowed: "1 to 64"; empty: not applicable
  std::string action = {};   // what to do: "run ft-tune --model DIR"; empty: nothing sensible
  std::string path = {};     // JSON path or file path the message is about; empty: none
};

class Error : public std::runtime_error {
 public:
  Error(ErrorKind kind, ErrorParts parts);
  ErrorKind kind() const { return kind_; }
  const ErrorParts& parts() const { return parts_; }

 private:
  ErrorKind kind_;
  ErrorParts parts_;
};

// "what: PATH is 'VALUE'; allowed: ALLOWED; ACTION", leaving out what is empty. One line, control characters escaped.
// The root of a JSON file, "$", reads "the whole file".
std::string format_error(const ErrorParts& parts);

// Control characters as "\x1b", those of Unicode too (U+0080 to U+009F; what turns the direction of writing, ends a
// line or a paragraph): text that comes from a file moves no cursor, forges no line of ours and reads as it is stored.
// `keep`: characters that stay, "\n" for text of several lines.
std::string printable(std::string_view text, std::string_view keep = {});

[[noreturn]] void check_failed(const char* expression, const char* file, int line);

}  // namespace ft

// For bugs only: prints the expression and aborts. Never for input.
#define FT_CHECK(expression) ((expression) ? static_cast<void>(0) : ::ft::check_failed(#expression, __FILE__, __LINE__))
