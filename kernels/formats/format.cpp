#include "kernels/formats/format.h"

#include "kernels/base/error.h"
#include "kernels/formats/bf16.h"
#include "kernels/formats/fp8_block.h"
#include "kernels/formats/fp8_channel.h"
#include "kernels/formats/mxfp4.h"
#include "kernels/formats/nvfp4.h"

namespace ft {
namespace {

constexpr FormatInfo kFormats[] = {
#define FT_FORMAT(id, name) formats::name::kInfo,
#include "kernels/formats/formats.def"
#undef FT_FORMAT
};
static_assert(std::size(kFormats) == kFormatCount);

}  // namespace

const FormatInfo& format_info(FormatId id) {
  const auto index = static_cast<size_t>(id);
  FT_CHECK(index < std::size(kFormats));
  return kFormats[index];
}

std::optional<FormatId> format_by_name(std::string_view name) {
  for (const FormatInfo& info : kFormats) {
    if (info.name == name) return info.id;
  }
  return std::nullopt;
}

std::span<const FormatInfo> all_formats() { return kFormats; }

}  // namespace ft
