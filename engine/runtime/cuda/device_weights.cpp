#include <algorithm>

#include "engine/runtime/cuda/device_weights_cuda.h"
#include "kernels/base/clock.h"
#include "kernels/base/error.h"

namespace ft {
namespace {

constexpr int64_t kAlign = 256;

int64_t padded(int64_t bytes) { return (bytes + kAlign - 1) / kAlign * kAlign; }

int64_t table_bytes(const EmbeddingTable& table) {
  return table.count * table.width * static_cast<int64_t>(sizeof(bf16));
}
int64_t table_bytes(const IndexTable& table) {
  return table.count * table.width * static_cast<int64_t>(sizeof(int32_t));
}

}  // namespace

DeviceWeights::DeviceWeights(const ModelWeights& weights, const ProgressFn& progress,
                             std::shared_ptr<const cuda::RegisteredMemory> registered)
    : host_(weights), banks_(std::move(registered)) {
  int64_t bytes = 0;
  for (const PackedMatrix& matrix : weights.matrices) bytes += padded(matrix.layout.bytes);
  for (const auto& vector : weights.vectors) bytes += padded(static_cast<int64_t>(vector.size_bytes()));
  for (const EmbeddingTable& table : weights.tables) bytes += padded(table_bytes(table));
  for (const IndexTable& table : weights.index_tables) bytes += padded(table_bytes(table));
  memory_ = cuda::DeviceBuffer(bytes);
  cuda::Stream stream;
  const auto report = [&](std::string_view stage) {
    if (progress) progress({stage, used_, bytes});
  };
  const auto upload = [&](const void* source, int64_t count) {
    std::byte* target = take(count);
    cuda::copy_to_device(target, source, count, stream.handle());
    report("copying dense weights to the device");
    return target;
  };
  for (PackedMatrix matrix : weights.matrices) {
    matrix.data = upload(matrix.data, matrix.layout.bytes);
    matrices_.push_back(matrix);
  }
  for (const auto& vector : weights.vectors) {
    vectors_.push_back(
        reinterpret_cast<const float*>(upload(vector.data(), static_cast<int64_t>(vector.size_bytes()))));
  }
  for (EmbeddingTable table : weights.tables) {
    table.rows = reinterpret_cast<const bf16*>(upload(table.rows, table_bytes(table)));
    tables_.push_back(table);
  }
  for (const IndexTable& table : weights.index_tables) {
    index_tables_.push_back(reinterpret_cast<const int32_t*>(upload(table.rows, table_bytes(table))));
  }
  stream.synchronize();
  const std::span<const std::byte> banks = weights.bank.bytes();
  const auto bank_bytes = static_cast<int64_t>(banks.size());
  if (banks_ != nullptr) {
    FT_CHECK(banks_->begin() == banks.data() && banks_->bytes() >= bank_bytes);
    return;
  }
  if (progress) progress({"registering expert banks", 0, bank_bytes});
  const double begin = now_seconds();
  banks_ = std::make_shared<const cuda::RegisteredMemory>(banks.data(), bank_bytes);
  register_seconds_ = now_seconds() - begin;
  if (progress) progress({"registering expert banks", bank_bytes, bank_bytes});
}

std::byte* DeviceWeights::take(int64_t bytes) {
  std::byte* begin = memory_.data() + used_;
  used_ += padded(bytes);
  FT_CHECK(used_ <= memory_.bytes());
  return begin;
}

const std::byte* DeviceWeights::bank(int layer) const {
  return banks_->device() + (host_.bank.blob(layer, 0) - host_.bank.bytes().data());
}

void DeviceWeights::copy_experts(std::byte* target, int layer, int expert, int64_t count,
                                 cuda::StreamHandle stream) const {
  const int64_t offset = host_.bank.blob(layer, expert) - host_.bank.bytes().data();
  banks_->copy_to_device(target, offset, count * host_.bank.layout(layer).bytes, stream);
}

std::shared_ptr<const DeviceWeights> upload_weights(const ModelWeights& weights, const ProgressFn& progress,
                                                    std::shared_ptr<const cuda::RegisteredMemory> registered) {
  return std::make_shared<DeviceWeights>(weights, progress, std::move(registered));
}

BankTimes bank_times(const ModelWeights& weights, const DeviceWeights& on_device) {
  return {static_cast<int64_t>(weights.bank.bytes().size()), weights.bank_seconds, on_device.register_seconds()};
}

}  // namespace ft
