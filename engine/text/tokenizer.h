// tokenizer.json (Hugging Face tokenizers, BPE) to ids and back. Immutable after load: any thread may use it.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace ft {

inline constexpr size_t kMaxEncodeBytes = 16u << 20;         // of one text
inline constexpr size_t kMaxTokenizerFileBytes = 64u << 20;  // largest published tokenizer.json: 33 MB
inline constexpr size_t kMaxStopStrings = 16;
inline constexpr size_t kMaxStopBytes = 1024;  // of one stop string

class Tokenizer {
 public:
  // Throws Error naming the file, the JSON path and the construct when something is unsupported.
  static std::unique_ptr<Tokenizer> load(const std::string& tokenizer_json_path);
  static std::unique_ptr<Tokenizer> parse(std::string_view tokenizer_json, std::string_view source);
  ~Tokenizer();

  // Invalid UTF-8 is an Error(kRequest), a text over kMaxEncodeBytes an Error(kCapacity).
  // allow_special: added tokens marked special are recognised in the text (chat template output); otherwise their text
  // is encoded as ordinary text (user input). Other added tokens are always recognised.
  // add_special_ids: also the ids that the post-processor puts around a text (Gemma's <bos>): true for raw prompts and
  // scored text, false for chat template output, which writes them itself.
  std::vector<int32_t> encode(std::string_view text, bool allow_special, bool add_special_ids = false) const;
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

// Finds stop strings in streamed text: text that may begin one is held back. The stop string that is complete first
// wins; of several that end together, the longest. So the result does not depend on how the text is cut into tokens.
class StopMatcher {
 public:
  // Throws Error(kRequest) when there are more than kMaxStopStrings, or one is empty or over kMaxStopBytes.
  explicit StopMatcher(std::vector<std::string> stops);
  struct Result {
    std::string text;
    bool stopped = false;
  };
  // Text that is safe to send; stopped: a stop string was reached. It is not sent, nor is anything after it.
  Result add(std::string_view text);
  std::string finish();  // what is still held back; empty after a stop

 private:
  std::vector<std::string> stops_;
  std::string held_;
  bool stopped_ = false;
};

}  // namespace ft
