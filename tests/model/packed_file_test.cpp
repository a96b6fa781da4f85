// Checked against: headers put together here word by word from the description in packed_file.h, every one of their
// bytes flipped, every length one too small and one too large.
#include "engine/model/packed_file.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>

#include "kernels/base/hash.h"
#include "tests/model/support.h"

namespace {

using namespace ft;
using namespace ft::test;

constexpr size_t kHeaderBytes = 4096;

std::string words(std::initializer_list<uint64_t> values) {
  std::string text;
  for (const uint64_t value : values) text.append(reinterpret_cast<const char*>(&value), sizeof value);
  return text;
}

std::string summed(std::string head, size_t bytes = kHeaderBytes) {
  head.resize(bytes - 8, '\0');
  return head + words({hash64(std::as_bytes(std::span(head.data(), head.size())))});
}

struct Lengths {
  uint64_t version = 1, description = 5, regions = 2, sections = 3;
  std::vector<uint64_t> region_bytes = {(1 << 20) + 3, 4};
};

constexpr uint64_t kLargestMade = 1 << 24;  // of a file of which more is promised, the rest is absent

// A file with the sums 11, 22, .. and zeros as data.
std::string image(const Lengths& l = {}) {
  std::string head = "FTPACK\r\n" + words({l.version, l.description, l.regions, l.sections}) + "hello";
  uint64_t data = 0;
  for (const uint64_t bytes : l.region_bytes) {
    head += words({bytes});
    data += bytes;
  }
  for (uint64_t i = 1; i <= 3; ++i) head += words({11 * i});
  return summed(head) + std::string(std::min(data, kLargestMade), '\0');
}

PackedHeader parse(const std::string& file) {
  return parse_packed_header(std::as_bytes(std::span(file.data(), file.size())), "FILE");
}

std::string refusal(const std::string& file) {
  return error_of([&] { parse(file); });
}

}  // namespace

TEST_CASE("a header written here is read, and one written there is the same bytes") {
  const std::string file = image();
  const PackedHeader header = parse(file);
  CHECK(header.description == "hello");
  CHECK(header.region_bytes == std::vector<int64_t>{(1 << 20) + 3, 4});
  CHECK(header.sums == std::vector<uint64_t>{11, 22, 33});
  CHECK(header.bytes == int64_t{kHeaderBytes});
  CHECK(write_packed_header(header) == file.substr(0, kHeaderBytes));
}

TEST_CASE("every byte of a header that is changed is noticed") {
  const std::string file = image();
  for (size_t i = 0; i < kHeaderBytes; ++i) {
    for (const int bit : {1, 0x80}) {
      std::string changed = file;
      changed[i] = static_cast<char>(changed[i] ^ bit);
      if (refusal(changed) == "no error") FAIL_CHECK("byte " << i);
    }
  }
}

TEST_CASE("lengths that do not fit the file are refused, by what is wrong") {
  const std::string file = image();
  for (const size_t bytes : {size_t{0}, size_t{7}, kHeaderBytes - 1}) {
    CHECK(mentions(refusal(file.substr(0, bytes)), {"FILE", "a header of"}));
  }
  CHECK(mentions(refusal(file.substr(0, kHeaderBytes)), {"region larger than the file"}));
  CHECK(mentions(refusal(file.substr(0, file.size() - 1)), {"as its header says"}));
  CHECK(mentions(refusal(file + '\0'), {"as its header says"}));
  CHECK(mentions(refusal(image({.version = 2})), {"version 2", "allowed: version 1"}));
  CHECK(mentions(refusal(image({.sections = 2})), {"2 sections", "3 for its regions"}));
  CHECK(mentions(refusal(image({.sections = 4})), {"4 sections", "3 for its regions"}));
  CHECK(mentions(refusal(image({.description = 4096})), {"damaged header"}));  // a longer header is in the file
  CHECK(mentions(refusal(image({.region_bytes = {uint64_t{1} << 63, 4}})), {"region larger"}));
}

TEST_CASE("counts at their bounds and one past them") {
  const auto refused = [](const Lengths& lengths) { return mentions(refusal(image(lengths)), {"damaged lengths"}); };
  CHECK(refused({.description = kMaxPackedDescriptionBytes + 1}));
  CHECK_FALSE(refused({.description = kMaxPackedDescriptionBytes}));
  CHECK(refused({.regions = kMaxPackedRegions + 1}));
  CHECK_FALSE(refused({.regions = kMaxPackedRegions}));
  CHECK(refused({.sections = kMaxPackedSections + 1}));
  CHECK_FALSE(refused({.sections = kMaxPackedSections}));
  const PackedHeader most{"", std::vector<int64_t>(kMaxPackedRegions, 1), std::vector<uint64_t>(kMaxPackedRegions), 0};
  CHECK(parse(write_packed_header(most) + std::string(kMaxPackedRegions, 'x')).region_bytes == most.region_bytes);
}

TEST_CASE("sections cover every byte of every region once, in order") {
  for (const int64_t first : {int64_t{0}, int64_t{1}, kPackedSectionBytes - 1, kPackedSectionBytes,
                              kPackedSectionBytes + 1, 3 * kPackedSectionBytes}) {
    const std::vector<int64_t> regions = {first, 0, 5};
    std::vector<int64_t> covered(3, 0);
    int64_t data = 0;
    for (const PackedSection& section : packed_sections(regions)) {
      CHECK(section.offset == covered[section.region]);
      CHECK(section.in_data == data);
      CHECK(section.bytes >= 1);
      CHECK(section.bytes <= kPackedSectionBytes);
      covered[section.region] += section.bytes;
      data += section.bytes;
    }
    CHECK(covered == regions);
  }
}
