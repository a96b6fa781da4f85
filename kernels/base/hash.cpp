#include "kernels/base/hash.h"

#include <xxhash.h>

#include "kernels/base/error.h"

namespace ft {
namespace {

std::string to_hex(XXH128_hash_t hash) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  text.reserve(32);
  for (const uint64_t half : {hash.high64, hash.low64}) {
    for (int shift = 60; shift >= 0; shift -= 4) text += kDigits[(half >> shift) & 15u];
  }
  return text;
}

}  // namespace

std::string hash_hex(std::span<const std::byte> bytes) { return to_hex(XXH3_128bits(bytes.data(), bytes.size())); }

std::string hash_hex(std::string_view text) { return hash_hex(std::as_bytes(std::span(text.data(), text.size()))); }

uint64_t hash64(std::span<const std::byte> bytes) { return XXH3_64bits(bytes.data(), bytes.size()); }

Hasher::Hasher() : state_(XXH3_createState()) {
  FT_CHECK(state_ != nullptr);
  XXH3_128bits_reset(static_cast<XXH3_state_t*>(state_));
}

Hasher::~Hasher() { XXH3_freeState(static_cast<XXH3_state_t*>(state_)); }

void Hasher::add(std::span<const std::byte> bytes) {
  XXH3_128bits_update(static_cast<XXH3_state_t*>(state_), bytes.data(), bytes.size());
}

std::string Hasher::hex() const { return to_hex(XXH3_128bits_digest(static_cast<const XXH3_state_t*>(state_))); }

}  // namespace ft
