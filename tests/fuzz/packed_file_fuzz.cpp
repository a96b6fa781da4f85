// parse_packed_header on arbitrary bytes, as they are and with the header's sum made right, which no mutation would
// find: an Error, or a header whose lengths add up to the file's and that is written back as the same bytes.
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>

#include "engine/model/packed_file.h"
#include "kernels/base/error.h"
#include "kernels/base/hash.h"

namespace {

void check(const std::string& file) {
  const auto bytes = std::as_bytes(std::span(file.data(), file.size()));
  try {
    const ft::PackedHeader header = ft::parse_packed_header(bytes, "input");
    int64_t data = 0;
    for (const int64_t region : header.region_bytes) data += region;
    FT_CHECK(header.bytes + data == static_cast<int64_t>(file.size()));
    FT_CHECK(ft::packed_sections(header.region_bytes).size() == header.sums.size());
    const std::string again = ft::write_packed_header(header);
    FT_CHECK(static_cast<int64_t>(again.size()) == header.bytes);
    // Only the zeros before the sum may differ: the reader does not ask what they are.
    const size_t used = 40 + header.description.size() + 8 * (header.region_bytes.size() + header.sums.size());
    FT_CHECK(std::memcmp(again.data(), file.data(), used) == 0);
  } catch (const ft::Error&) {
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::string file(reinterpret_cast<const char*>(data), size);
  check(file);
  for (size_t header = ft::kPackedFileAlign; header <= file.size(); header += ft::kPackedFileAlign) {
    std::string summed = file;
    const uint64_t sum = ft::hash64(std::as_bytes(std::span(summed.data(), header - sizeof sum)));
    std::memcpy(summed.data() + header - sizeof sum, &sum, sizeof sum);
    check(summed);
  }
  return 0;
}
