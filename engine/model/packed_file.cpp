#include "engine/model/packed_file.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "kernels/base/error.h"
#include "kernels/base/hash.h"

namespace ft {
namespace {

static_assert(std::endian::native == std::endian::little, "the file is little-endian and used in place");

constexpr uint64_t kMagic = 0x0a0d4b4341505446u;  // "FTPACK\r\n": a transfer that changes line ends breaks it
constexpr uint64_t kWord = sizeof(uint64_t);
constexpr uint64_t kFixedWords = 5;

[[noreturn]] void refuse(std::string_view source, std::string value, std::string allowed) {
  throw Error(ErrorKind::kFailed, {.what = "not a usable file of packed weights",
                                   .value = std::move(value),
                                   .allowed = std::move(allowed),
                                   .path = std::string(source)});
}

uint64_t word_at(std::span<const std::byte> bytes, uint64_t offset) {
  uint64_t word = 0;
  std::memcpy(&word, bytes.data() + offset, kWord);
  return word;
}

void append(std::string& text, uint64_t word) { text.append(reinterpret_cast<const char*>(&word), kWord); }

uint64_t aligned(uint64_t bytes) { return (bytes + kPackedFileAlign - 1) / kPackedFileAlign * kPackedFileAlign; }

// Each count is bounded, so no sum of them overflows.
uint64_t header_bytes(uint64_t description, uint64_t regions, uint64_t sections) {
  return aligned((kFixedWords + regions + sections + 1) * kWord + description);
}

uint64_t section_count(uint64_t region_bytes) {
  return region_bytes / kPackedSectionBytes + (region_bytes % kPackedSectionBytes != 0 ? 1 : 0);
}

}  // namespace

std::vector<PackedSection> packed_sections(std::span<const int64_t> region_bytes) {
  std::vector<PackedSection> sections;
  int64_t in_data = 0;
  for (size_t region = 0; region < region_bytes.size(); ++region) {
    for (int64_t offset = 0; offset < region_bytes[region]; offset += kPackedSectionBytes) {
      const int64_t bytes = std::min(kPackedSectionBytes, region_bytes[region] - offset);
      sections.push_back({region, offset, bytes, in_data});
      in_data += bytes;
    }
  }
  return sections;
}

int64_t packed_header_bytes(size_t description_bytes, std::span<const int64_t> region_bytes) {
  uint64_t sections = 0;
  for (const int64_t bytes : region_bytes) sections += section_count(static_cast<uint64_t>(bytes));
  FT_CHECK(description_bytes <= kMaxPackedDescriptionBytes && region_bytes.size() <= kMaxPackedRegions &&
           sections <= kMaxPackedSections);
  return static_cast<int64_t>(header_bytes(description_bytes, region_bytes.size(), sections));
}

std::string write_packed_header(const PackedHeader& header) {
  const auto bytes = static_cast<size_t>(packed_header_bytes(header.description.size(), header.region_bytes));
  std::string text;
  text.reserve(bytes);
  for (const uint64_t word :
       {kMagic, kPackedFileVersion, static_cast<uint64_t>(header.description.size()),
        static_cast<uint64_t>(header.region_bytes.size()), static_cast<uint64_t>(header.sums.size())}) {
    append(text, word);
  }
  text += header.description;
  for (const int64_t region : header.region_bytes) append(text, static_cast<uint64_t>(region));
  for (const uint64_t sum : header.sums) append(text, sum);
  FT_CHECK(text.size() + kWord <= bytes && bytes - text.size() < kPackedFileAlign + kWord);
  text.resize(bytes - kWord, '\0');
  append(text, hash64(std::as_bytes(std::span(text.data(), text.size()))));
  return text;
}

PackedHeader parse_packed_header(std::span<const std::byte> file, std::string_view source) {
  if (file.size() < kPackedFileAlign)
    refuse(source, std::to_string(file.size()) + " bytes", "a header of 4096 at least");
  if (word_at(file, 0) != kMagic) refuse(source, "other bytes at its beginning", "a file that this program wrote");
  if (const uint64_t version = word_at(file, kWord); version != kPackedFileVersion) {
    refuse(source, "version " + std::to_string(version), "version " + std::to_string(kPackedFileVersion));
  }
  const uint64_t description = word_at(file, 2 * kWord);
  const uint64_t regions = word_at(file, 3 * kWord);
  const uint64_t sections = word_at(file, 4 * kWord);
  if (description > kMaxPackedDescriptionBytes || regions > kMaxPackedRegions || sections > kMaxPackedSections) {
    refuse(source, "damaged lengths in its header", "at most 16 MiB of description, 16 regions and 2^24 sections");
  }
  const uint64_t bytes = header_bytes(description, regions, sections);
  if (bytes > file.size()) {
    refuse(source, std::to_string(file.size()) + " bytes", "a header of " + std::to_string(bytes));
  }
  if (hash64(file.first(bytes - kWord)) != word_at(file, bytes - kWord)) {
    refuse(source, "a damaged header", "the sum that it was written with");
  }
  PackedHeader header;
  header.bytes = static_cast<int64_t>(bytes);
  uint64_t at = kFixedWords * kWord;
  header.description.assign(reinterpret_cast<const char*>(file.data() + at), description);
  at += description;
  uint64_t data = 0, counted = 0;
  for (uint64_t i = 0; i < regions; ++i, at += kWord) {
    const uint64_t region = word_at(file, at);
    if (region > file.size()) refuse(source, "a region larger than the file", std::to_string(file.size()) + " bytes");
    header.region_bytes.push_back(static_cast<int64_t>(region));
    data += region;  // of at most 16 regions below 2^60 bytes, the largest a file can have
    counted += section_count(region);
  }
  if (counted != sections) {
    refuse(source, std::to_string(sections) + " sections", std::to_string(counted) + " for its regions");
  }
  if (file.size() - bytes != data) {
    refuse(source, std::to_string(file.size()) + " bytes", std::to_string(bytes + data) + ", as its header says");
  }
  header.sums.resize(sections);
  if (sections != 0) std::memcpy(header.sums.data(), file.data() + at, sections * kWord);
  return header;
}

}  // namespace ft
