#include "engine/text/regex.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "engine/text/utf8.h"
#include "kernels/base/error.h"

namespace ft {
namespace {

// Backtracking steps of one search: the patterns in use need less than one per byte and alternative.
constexpr uint32_t kMatchSteps = 2'000'000;
constexpr uint32_t kMatchStepsPerByte = 16;
constexpr uint32_t kMatchHeapKib = 64 << 10;  // only without JIT
constexpr size_t kJitStackBytesMin = 32 << 10, kJitStackBytesMax = 1 << 20;

std::string pcre_message(int code) {
  PCRE2_UCHAR buffer[256] = {};
  pcre2_get_error_message(code, buffer, sizeof(buffer));
  return reinterpret_cast<const char*>(buffer);
}

}  // namespace

struct Regex::State {
  pcre2_code* code = nullptr;
  ~State() { pcre2_code_free(code); }
};

struct RegexMatcher::State {
  pcre2_match_data* data = nullptr;
  pcre2_match_context* context = nullptr;
  pcre2_jit_stack* stack = nullptr;
  ~State() {
    pcre2_jit_stack_free(stack);
    pcre2_match_context_free(context);
    pcre2_match_data_free(data);
  }
};

Regex::Regex(std::string_view pattern) : state_(std::make_unique<State>()) {
  if (pattern.size() > kMaxRegexBytes) {
    throw Error(ErrorKind::kFailed, {"regular expression too long", std::to_string(pattern.size()) + " bytes",
                                     "at most " + std::to_string(kMaxRegexBytes), "", ""});
  }
  if (valid_utf8_bytes(pattern) != pattern.size()) {
    throw Error(ErrorKind::kFailed, {"regular expression is not UTF-8", std::string(pattern), "", "", ""});
  }
  const std::string translated = translate_regex(pattern);
  const std::unique_ptr<pcre2_compile_context, void (*)(pcre2_compile_context*)> context(
      pcre2_compile_context_create(nullptr), pcre2_compile_context_free);
  pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);
  int code = 0;
  size_t offset = 0;
  // Ruby's ^ and $ are those of lines.
  const uint32_t options = PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C | PCRE2_NO_AUTO_CAPTURE;
  state_->code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(translated.data()), translated.size(), options, &code,
                               &offset, context.get());
  if (state_->code == nullptr) {
    throw Error(ErrorKind::kFailed,
                {"regular expression refused: " + pcre_message(code), std::string(pattern), "", "", ""});
  }
  // Without JIT (a hardened kernel may forbid it) the interpreter gives the same matches.
  static_cast<void>(pcre2_jit_compile(state_->code, PCRE2_JIT_COMPLETE));
}

Regex::~Regex() = default;

RegexMatcher::RegexMatcher(const Regex& regex) : regex_(regex), state_(std::make_unique<State>()) {
  state_->data = pcre2_match_data_create(1, nullptr);
  state_->context = pcre2_match_context_create(nullptr);
  if (state_->data == nullptr || state_->context == nullptr) throw std::bad_alloc();
  pcre2_set_heap_limit(state_->context, kMatchHeapKib);
}

RegexMatcher::~RegexMatcher() = default;

bool RegexMatcher::find(std::string_view text, size_t from, TextSpan& match) {
  const auto bytes = static_cast<uint32_t>(text.size());
  pcre2_set_match_limit(state_->context, kMatchSteps + kMatchStepsPerByte * bytes);
  const auto search = [&](uint32_t options) {
    return pcre2_match(regex_.state_->code, reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), from,
                       PCRE2_NO_UTF_CHECK | options, state_->data, state_->context);
  };
  int count = search(0);
  if (count == PCRE2_ERROR_JIT_STACKLIMIT && state_->stack == nullptr) {
    state_->stack = pcre2_jit_stack_create(kJitStackBytesMin, kJitStackBytesMax, nullptr);
    pcre2_jit_stack_assign(state_->context, nullptr, state_->stack);
    count = search(0);
  }
  if (count == PCRE2_ERROR_JIT_STACKLIMIT) count = search(PCRE2_NO_JIT);
  if (count == PCRE2_ERROR_NOMATCH) return false;
  if (count < 0) {
    throw Error(ErrorKind::kRequest, {"text cannot be split into words: " + pcre_message(count),
                                      std::to_string(text.size()) + " bytes", "", "shorten the text", ""});
  }
  const size_t* spans = pcre2_get_ovector_pointer(state_->data);
  match = {spans[0], spans[1]};
  return true;
}

}  // namespace ft
