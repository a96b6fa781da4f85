#include "engine/runtime/backend.h"

#include "kernels/base/error.h"

namespace ft {
namespace {

constexpr bool kDeviceHasIt = false;

}  // namespace

void Backend::norm(Slot, const Norm&, Slot) { FT_CHECK(kDeviceHasIt); }
void Backend::add(const AddSpec&) { FT_CHECK(kDeviceHasIt); }
void Backend::delta_net(const DeltaNetSpec&) { FT_CHECK(kDeviceHasIt); }

}  // namespace ft
