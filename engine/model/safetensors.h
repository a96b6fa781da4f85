// safetensors files: u64 header length, JSON header, data. Every length, offset and shape is checked before a byte of
// data is touched. Source: https://huggingface.co/docs/safetensors (format section).
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace ft {

enum class DType : uint8_t {
  kBool,
  kU8,
  kI8,
  kF8E4M3,
  kF8E5M2,
  kF8E8M0,
  kI16,
  kU16,
  kF16,
  kBf16,
  kI32,
  kU32,
  kF32,
  kI64,
  kU64,
  kF64
};
std::string_view dtype_name(DType dtype);  // the safetensors spelling
int dtype_bytes(DType dtype);

struct TensorView {
  DType dtype{};
  std::vector<int64_t> shape;
  std::span<const std::byte> bytes;  // exactly product(shape) * dtype_bytes
  int64_t elements() const;
};

using TensorMap = std::map<std::string, TensorView, std::less<>>;

inline constexpr uint64_t kMaxSafetensorsHeaderBytes = 100'000'000;  // as the reference implementation
inline constexpr size_t kMaxTensorRank = 8;
inline constexpr size_t kMaxTensors = 1'000'000;

// Parses a whole file image. `source` names it in errors. Spans point into `file`. Refuses overlap, gaps are allowed.
TensorMap parse_safetensors(std::span<const std::byte> file, std::string_view source);

// A tensor to write: F32 or I64.
struct TensorToWrite {
  std::string name;
  std::vector<int64_t> shape;
  std::span<const float> f32;
  std::span<const int64_t> i64;  // used when f32 is empty and i64 is not
};
// Atomic write. Throws Error naming the path.
void write_safetensors(const std::string& path, std::span<const TensorToWrite> tensors);

}  // namespace ft
