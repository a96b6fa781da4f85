// Checked against: the Python package xxhash 3 (xxh3_128_hexdigest, xxh3_64_intdigest).
#include "kernels/base/hash.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <vector>

namespace {

std::vector<std::byte> counting_bytes() {  // bytes(range(256)) * 1000
  std::vector<std::byte> bytes(256'000);
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(i & 255u);
  return bytes;
}

}  // namespace

TEST_CASE("hashes are XXH3's") {
  CHECK(ft::hash_hex("") == "99aa06d3014798d86001c324468d497f");
  CHECK(ft::hash_hex("a") == "a96faf705af16834e6c632b61e964e1f");
  CHECK(ft::hash_hex(counting_bytes()) == "548512d98989de2d776474c39d20f9aa");
  CHECK(ft::hash64(counting_bytes()) == 0x776474c39d20f9aau);
  CHECK(ft::hash64({}) == 0x2d06800538d394c2u);
}

TEST_CASE("the incremental hash does not depend on where the pieces end") {
  const std::vector<std::byte> bytes = counting_bytes();
  const std::span<const std::byte> all(bytes);
  for (const size_t piece : {size_t{1}, size_t{63}, size_t{1024}, size_t{100'000}, bytes.size()}) {
    ft::Hasher hasher;
    for (size_t at = 0; at < all.size(); at += piece) hasher.add(all.subspan(at, std::min(piece, all.size() - at)));
    CHECK(hasher.hex() == "548512d98989de2d776474c39d20f9aa");
  }
  CHECK(ft::Hasher().hex() == "99aa06d3014798d86001c324468d497f");
}
