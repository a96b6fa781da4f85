// parse_safetensors on arbitrary bytes: an Error, or views that lie inside the input and match their shapes.
#include <cstddef>
#include <cstdint>
#include <span>

#include "engine/model/safetensors.h"
#include "kernels/base/error.h"

namespace {

void check_view(std::span<const std::byte> file, const ft::TensorView& view) {
  uint64_t bytes = static_cast<uint64_t>(ft::dtype_bytes(view.dtype));
  for (const int64_t size : view.shape) bytes *= static_cast<uint64_t>(size);
  FT_CHECK(bytes == view.bytes.size());
  if (bytes == 0) return;
  FT_CHECK(view.bytes.data() >= file.data() && view.bytes.data() + bytes <= file.data() + file.size());
  const volatile std::byte *first = &view.bytes.front(), *last = &view.bytes.back();  // volatile: the reads are made
  static_cast<void>(*first);
  static_cast<void>(*last);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::span<const std::byte> file = std::as_bytes(std::span(data, size));
  try {
    for (const auto& [name, view] : ft::parse_safetensors(file, "input")) check_view(file, view);
  } catch (const ft::Error&) {
  }
  return 0;
}
