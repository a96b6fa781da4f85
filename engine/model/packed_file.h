// A file of packed weights, as --packed-cache keeps it: what is in memory after loading, byte by byte, behind a header.
//
//   u64  magic, version, bytes of the description, number of regions, number of sections
//   ...  description: JSON, what the data was made from and how it is laid out (packed_cache.cpp)
//   u64  bytes of each region
//   u64  XXH3 of each section
//   0s   up to the last 8 bytes of the header, which ends on a multiple of kPackedFileAlign
//   u64  XXH3 of all that stands before
//   ...  the regions one after another, to the end of the file
//
// A section is kPackedSectionBytes of one region, its last one shorter. Little endian. Every byte is covered by a sum.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace ft {

inline constexpr uint64_t kPackedFileVersion = 1;
inline constexpr uint64_t kPackedFileAlign = 4096;
// Small enough to be in a core's cache when it is summed after it was read.
inline constexpr int64_t kPackedSectionBytes = int64_t{1} << 20;
inline constexpr uint64_t kMaxPackedDescriptionBytes = 16 << 20;
inline constexpr uint64_t kMaxPackedRegions = 16;
inline constexpr uint64_t kMaxPackedSections = uint64_t{1} << 24;  // 16 TiB

struct PackedHeader {
  std::string description;
  std::vector<int64_t> region_bytes;
  std::vector<uint64_t> sums;  // of all sections, region after region
  int64_t bytes = 0;           // of the header: where the data begins
};

// A piece of one region.
struct PackedSection {
  size_t region = 0;
  int64_t offset = 0;  // in the region
  int64_t bytes = 0;
  int64_t in_data = 0;  // offset behind the header
};
std::vector<PackedSection> packed_sections(std::span<const int64_t> region_bytes);

// Bytes of the header for these regions.
int64_t packed_header_bytes(size_t description_bytes, std::span<const int64_t> region_bytes);
// REQUIRES one sum per section. header.bytes is not read.
std::string write_packed_header(const PackedHeader& header);
// `file`: a whole file, of which only the header is read. Checks magic, version, every length against the file's size
// and the header's sum. Throws Error naming `source` and what is wrong.
PackedHeader parse_packed_header(std::span<const std::byte> file, std::string_view source);

}  // namespace ft
