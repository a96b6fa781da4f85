// tokenizer.json (Hugging Face tokenizers, BPE) to ids and back. Immutable after load: any thread may use it.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace ft {

inline constexpr size_t kMaxEncodeBytes = 16u << 20;

class Tokenizer {
 public:
  // Throws Error naming the file, the JSON path and the construct when something is unsupported.
  static std::unique_ptr<Tokenizer> load(const std::string& tokenizer_json_path);
  static std::unique_ptr<Tokenizer> parse(std::string_view tokenizer_json, std::string_view source);
  ~Tokenizer();

  // Invalid UTF-8 is an Error(kRequest). allow_special: added tokens marked special are recognised in the text (chat
  // template output); otherwise their text is encoded as ordinary text (user input).
  std::vector<int32_t> encode(std::string_view text, bool allow_special) const;
  // Bytes of the tokens; may end inside a UTF-8 sequence. Unknown ids decode to nothing.
  std::string decode_bytes(std::span<const int32_t> ids, bool skip_special) const;
  // decode_bytes with invalid sequences replaced by U+FFFD.
  std::string decode(std::span<const int32_t> ids, bool skip_special) const;

  int64_t vocab_size() const;  // ids in use are below this
  bool is_special(int32_t id) const;
  int32_t id_of(std::string_view token) const;  // of an exact vocabulary or added token; -1 when absent

 private:
  Tokenizer();
  struct State;
  std::unique_ptr<State> state_;
};

// Streams text of one sequence: holds bytes back until they are whole UTF-8.
class Detokenizer {
 public:
  Detokenizer(const Tokenizer& tokenizer, bool skip_special);
  std::string add(int32_t id);  // the text that became whole, possibly empty
  std::string finish();         // what is left, invalid bytes as U+FFFD

 private:
  const Tokenizer& tokenizer_;
  bool skip_special_;
  std::string pending_;
};

// Finds stop strings in streamed text: text that may begin one is held back.
class StopMatcher {
 public:
  explicit StopMatcher(std::vector<std::string> stops);
  struct Result {
    std::string text;
    bool stopped = false;
  };
  Result add(std::string_view text);  // text safe to send; stopped: a stop string was reached and is not sent
  std::string finish();

 private:
  std::vector<std::string> stops_;
  std::string held_;
};

}  // namespace ft
