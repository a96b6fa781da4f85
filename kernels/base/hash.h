// Content hashes (XXH3, 128 bits) as lower-case hex. Not cryptographic: they detect change, not malice.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace ft {

std::string hash_hex(std::span<const std::byte> bytes);  // 32 hex digits
std::string hash_hex(std::string_view text);
uint64_t hash64(std::span<const std::byte> bytes);

// Incremental form, for hashing files or many logits rows.
class Hasher {
 public:
  Hasher();
  ~Hasher();
  Hasher(const Hasher&) = delete;
  Hasher& operator=(const Hasher&) = delete;
  void add(std::span<const std::byte> bytes);
  std::string hex() const;

 private:
  void* state_;
};

}  // namespace ft
