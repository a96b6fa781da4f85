// tokenizer.json from arbitrary bytes: accepted or refused with an Error, and what is accepted encodes and decodes.
#include <cstdint>
#include <string_view>

#include "engine/text/tokenizer.h"
#include "kernels/base/error.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view json(reinterpret_cast<const char*>(data), size);
  try {
    const auto tokenizer = ft::Tokenizer::parse(json, "fuzz");
    for (const std::string_view text :
         {"", "a b\n\n c", "<s>it's \xc3\xa9\xe2\x80\x8b 123", "aaaaaaaaaaaaaaaaaaaaaaaa"}) {
      for (const bool flag : {false, true}) {
        const auto ids = tokenizer->encode(text, flag, flag);
        for (const int32_t id : ids) {
          if (id < 0 || id >= tokenizer->vocab_size()) __builtin_trap();
        }
        static_cast<void>(tokenizer->decode(ids, flag));
      }
    }
  } catch (const ft::Error&) {
  }
  return 0;
}
