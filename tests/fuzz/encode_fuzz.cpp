// Text from arbitrary bytes through the bundled tokenizer: ids are in range, decoding gives the normalized text back,
// and streaming gives what decoding gives. The tokenizer is looked for in the folders above the program.
#include <unicode/bytestream.h>
#include <unicode/normalizer2.h>
#include <unicode/uniset.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>

#include "engine/text/tokenizer.h"
#include "kernels/base/error.h"

namespace {

std::unique_ptr<ft::Tokenizer>& loaded() {
  static std::unique_ptr<ft::Tokenizer> tokenizer;
  return tokenizer;
}
const ft::Tokenizer& tokenizer() { return *loaded(); }

std::string normalized(std::string_view text) {
  UErrorCode status = U_ZERO_ERROR;
  static const icu::UnicodeSet known(u"[:age=9.0:]", status);  // what tokenizers' normalizer knows
  static const icu::FilteredNormalizer2 nfc(*icu::Normalizer2::getNFCInstance(status), known);
  std::string result;
  icu::StringByteSink<std::string> sink(&result);
  nfc.normalizeUTF8(0, icu::StringPiece(text.data(), static_cast<int32_t>(text.size())), sink, nullptr, status);
  if (U_FAILURE(status)) __builtin_trap();
  return result;
}

}  // namespace

extern "C" int LLVMFuzzerInitialize(int*, char*** arguments) {
  namespace fs = std::filesystem;
  for (fs::path folder = fs::absolute((*arguments)[0]).parent_path(); folder != folder.root_path();
       folder = folder.parent_path()) {
    const fs::path file = folder / "tests/data/tiny-moe/tokenizer.json";
    if (!fs::exists(file)) continue;
    loaded() = ft::Tokenizer::load(file.string());
    return 0;
  }
  std::fputs("tests/data/tiny-moe/tokenizer.json is in no folder above the program\n", stderr);
  std::exit(1);
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  try {
    const auto ids = tokenizer().encode(text, false);
    for (const int32_t id : ids) {
      if (id < 0 || id >= tokenizer().vocab_size()) __builtin_trap();
    }
    if (tokenizer().decode(ids, false) != normalized(text)) __builtin_trap();
    ft::Detokenizer detokenizer(tokenizer(), false);
    std::string streamed;
    for (const int32_t id : ids) streamed += detokenizer.add(id);
    if (streamed + detokenizer.finish() != tokenizer().decode(ids, false)) __builtin_trap();
    static_cast<void>(tokenizer().encode(text, true));
  } catch (const ft::Error& error) {
    if (error.kind() != ft::ErrorKind::kRequest) __builtin_trap();  // invalid UTF-8 only
  }
  return 0;
}
