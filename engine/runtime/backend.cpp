#include "engine/runtime/backend.h"

#include "kernels/base/error.h"

namespace ft {
namespace {

constexpr bool kDeviceHasIt = false;

}  // namespace

void Backend::norm(Slot, const Norm&, Slot) { FT_CHECK(kDeviceHasIt); }
void Backend::add(const AddSpec&) { FT_CHECK(kDeviceHasIt); }
void Backend::delta_net(const DeltaNetSpec&) { FT_CHECK(kDeviceHasIt); }
void Backend::streams_read(const StreamsSpec&, Slot) { FT_CHECK(kDeviceHasIt); }
void Backend::streams_write(const StreamsSpec&, Slot) { FT_CHECK(kDeviceHasIt); }
void Backend::embed_ngrams(const NgramEmbedSpec&) { FT_CHECK(kDeviceHasIt); }
void Backend::add_ngrams(const NgramAddSpec&) { FT_CHECK(kDeviceHasIt); }
void Backend::compressed_attention(const CompressedAttentionSpec&) { FT_CHECK(kDeviceHasIt); }
void Backend::grouped_linear(Slot, MatrixId, int, Slot) { FT_CHECK(kDeviceHasIt); }

}  // namespace ft
