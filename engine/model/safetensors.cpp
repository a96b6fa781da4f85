#include "engine/model/safetensors.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>

#include "kernels/base/error.h"
#include "kernels/base/json.h"

namespace ft {
namespace {

static_assert(std::endian::native == std::endian::little, "safetensors data is little-endian and used in place");

struct DTypeInfo {
  DType dtype;
  std::string_view name;
  int bytes;
};
constexpr DTypeInfo kDTypes[] = {
    {DType::kBool, "BOOL", 1},      {DType::kU8, "U8", 1},          {DType::kI8, "I8", 1},
    {DType::kF8E4M3, "F8_E4M3", 1}, {DType::kF8E5M2, "F8_E5M2", 1}, {DType::kF8E8M0, "F8_E8M0", 1},
    {DType::kI16, "I16", 2},        {DType::kU16, "U16", 2},        {DType::kF16, "F16", 2},
    {DType::kBf16, "BF16", 2},      {DType::kI32, "I32", 4},        {DType::kU32, "U32", 4},
    {DType::kF32, "F32", 4},        {DType::kI64, "I64", 8},        {DType::kU64, "U64", 8},
    {DType::kF64, "F64", 8},
};

const DTypeInfo& dtype_info(DType dtype) { return kDTypes[static_cast<size_t>(dtype)]; }

constexpr uint64_t kLengthBytes = 8;
constexpr uint64_t kDataAlign = 8;

// Per tensor a header has its name, 3 keys, a dtype, 2 arrays, 2 offsets and the shape.
constexpr size_t kJsonValuesPerTensor = 9 + kMaxTensorRank;
constexpr JsonLimits kHeaderLimits{kMaxSafetensorsHeaderBytes, 8, kMaxTensors* kJsonValuesPerTensor, kMaxTensors + 1};

// Names the file and, when there is one, the tensor.
[[noreturn]] void refuse(std::string_view source, std::string_view tensor, std::string value, std::string allowed) {
  std::string path(source);
  if (!tensor.empty()) path += ", tensor " + std::string(tensor);
  throw Error(ErrorKind::kFailed, {.what = "not a usable safetensors file",
                                   .value = std::move(value),
                                   .allowed = std::move(allowed),
                                   .action = "download the file again",
                                   .path = std::move(path)});
}

uint64_t read_uint(const Json& value, std::string_view source, std::string_view tensor, const char* key) {
  if (!value.is_number_integer() || (!value.is_number_unsigned() && value.get<int64_t>() < 0)) {
    refuse(source, tensor, std::string(key) + " " + value.dump(), "whole numbers from 0 to 2^63 - 1");
  }
  const auto number = value.get<uint64_t>();
  if (number > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
    refuse(source, tensor, std::string(key) + " " + value.dump(), "whole numbers from 0 to 2^63 - 1");
  }
  return number;
}

const Json& member(const Json& entry, std::string_view source, std::string_view tensor, const char* key) {
  const auto it = entry.find(key);
  if (it == entry.end()) refuse(source, tensor, std::string("no ") + key, "dtype, shape and data_offsets");
  return *it;
}

DType read_dtype(const Json& value, std::string_view source, std::string_view tensor) {
  std::string known;
  for (const DTypeInfo& info : kDTypes) {
    if (value.is_string() && value.get_ref<const std::string&>() == info.name) return info.dtype;
    if (!known.empty()) known += ", ";
    known += info.name;
  }
  refuse(source, tensor, "dtype " + value.dump(), known);
}

struct Placed {
  uint64_t begin = 0, end = 0;
  const std::string* name = nullptr;
};

// One header entry; `data` is everything after the header.
TensorView read_tensor(const std::string& name, const Json& entry, std::span<const std::byte> data,
                       std::string_view source, Placed& placed) {
  if (!entry.is_object()) refuse(source, name, entry.dump(), "an object with dtype, shape and data_offsets");
  TensorView view;
  view.dtype = read_dtype(member(entry, source, name, "dtype"), source, name);

  const Json& shape = member(entry, source, name, "shape");
  if (!shape.is_array() || shape.size() > kMaxTensorRank) {
    refuse(source, name, "a shape of " + std::to_string(shape.size()) + " dimensions",
           "at most " + std::to_string(kMaxTensorRank));
  }
  uint64_t bytes = static_cast<uint64_t>(dtype_bytes(view.dtype));
  bool overflow = false;
  for (const Json& dimension : shape) {
    const uint64_t size = read_uint(dimension, source, name, "shape");
    overflow |= __builtin_mul_overflow(bytes, size, &bytes);
    view.shape.push_back(static_cast<int64_t>(size));
  }
  // A later dimension of 0 does not excuse a product that does not fit on the way: nobody writes such a shape.
  if (overflow) refuse(source, name, "shape " + shape.dump(), "a product below 2^64 bytes");

  const Json& offsets = member(entry, source, name, "data_offsets");
  if (!offsets.is_array() || offsets.size() != 2)
    refuse(source, name, "data_offsets " + offsets.dump(), "[begin, end]");
  placed.begin = read_uint(offsets[0], source, name, "data_offsets");
  placed.end = read_uint(offsets[1], source, name, "data_offsets");
  placed.name = &name;
  if (placed.begin > placed.end || placed.end > data.size()) {
    refuse(source, name, "data_offsets " + offsets.dump(),
           "begin <= end <= " + std::to_string(data.size()) + ", the bytes of data in the file");
  }
  if (placed.end - placed.begin != bytes) {
    refuse(source, name, std::to_string(placed.end - placed.begin) + " bytes of data",
           std::to_string(bytes) + " bytes for " + std::string(dtype_name(view.dtype)) + " " + shape.dump());
  }
  view.bytes = data.subspan(placed.begin, bytes);
  return view;
}

void refuse_overlap(std::vector<Placed>& placed, std::string_view source) {
  std::erase_if(placed, [](const Placed& p) { return p.begin == p.end; });
  std::sort(placed.begin(), placed.end(), [](const Placed& a, const Placed& b) { return a.begin < b.begin; });
  for (size_t i = 1; i < placed.size(); ++i) {
    if (placed[i].begin < placed[i - 1].end) {
      refuse(source, *placed[i].name, "data that overlaps tensor " + *placed[i - 1].name, "data of its own");
    }
  }
}

}  // namespace

std::string_view dtype_name(DType dtype) { return dtype_info(dtype).name; }
int dtype_bytes(DType dtype) { return dtype_info(dtype).bytes; }

int64_t TensorView::elements() const { return static_cast<int64_t>(bytes.size()) / dtype_bytes(dtype); }

TensorMap parse_safetensors(std::span<const std::byte> file, std::string_view source) {
  if (file.size() < kLengthBytes) {
    refuse(source, {}, std::to_string(file.size()) + " bytes", "at least 8, the header's length");
  }
  uint64_t header_bytes = 0;
  std::memcpy(&header_bytes, file.data(), kLengthBytes);
  const uint64_t rest = file.size() - kLengthBytes;
  constexpr std::string_view kPointer = "version https://git-lfs";
  if (file.size() >= kPointer.size() && std::memcmp(file.data(), kPointer.data(), kPointer.size()) == 0) {
    refuse(source, {}, "a pointer of Git LFS", "the file that it stands for: fetch it with `git lfs pull`");
  }
  if (header_bytes > kMaxSafetensorsHeaderBytes || header_bytes > rest) {
    refuse(source, {}, "a header of " + std::to_string(header_bytes) + " bytes",
           "at most " + std::to_string(std::min(rest, kMaxSafetensorsHeaderBytes)) + " in this file");
  }
  const auto header_span = file.subspan(kLengthBytes, header_bytes);
  const std::string_view text(reinterpret_cast<const char*>(header_span.data()), header_span.size());
  const Json header = parse_json(text, std::string(source) + " (header)", kHeaderLimits);
  if (!header.is_object()) refuse(source, {}, "a header that is not an object", "a JSON object");

  const auto data = file.subspan(kLengthBytes + header_bytes);
  TensorMap tensors;
  std::vector<Placed> placed;
  for (const auto& [name, entry] : header.items()) {
    if (name == "__metadata__") continue;
    if (tensors.size() == kMaxTensors) refuse(source, name, "one tensor too many", std::to_string(kMaxTensors));
    placed.emplace_back();
    const auto slot = tensors.emplace(name, TensorView{}).first;
    slot->second = read_tensor(slot->first, entry, data, source, placed.back());
  }
  refuse_overlap(placed, source);
  return tensors;
}

void write_safetensors(const std::string& path, std::span<const TensorToWrite> tensors) {
  OrderedJson header = OrderedJson::object();
  uint64_t offset = 0;
  const auto bytes_of = [](const TensorToWrite& t) {
    return t.f32.empty() ? std::as_bytes(t.i64) : std::as_bytes(t.f32);
  };
  for (const TensorToWrite& tensor : tensors) {
    const auto bytes = bytes_of(tensor);
    const bool is_i64 = tensor.f32.empty() && !tensor.i64.empty();
    uint64_t expected = static_cast<uint64_t>(dtype_bytes(is_i64 ? DType::kI64 : DType::kF32));
    for (const int64_t size : tensor.shape) FT_CHECK(!__builtin_mul_overflow(expected, size, &expected));
    FT_CHECK(expected == bytes.size() && !header.contains(tensor.name));
    header[tensor.name] = {
        {"dtype", is_i64 ? "I64" : "F32"}, {"shape", tensor.shape}, {"data_offsets", {offset, offset + bytes.size()}}};
    offset += bytes.size();
  }
  std::string text = header.dump();
  text.resize((text.size() + kDataAlign - 1) / kDataAlign * kDataAlign, ' ');

  std::string content;
  content.reserve(kLengthBytes + text.size() + offset);
  const uint64_t header_bytes = text.size();
  content.append(reinterpret_cast<const char*>(&header_bytes), kLengthBytes);
  content += text;
  for (const TensorToWrite& tensor : tensors) {
    const auto bytes = bytes_of(tensor);
    content.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  }
  write_file_atomically(path, content);
}

}  // namespace ft
