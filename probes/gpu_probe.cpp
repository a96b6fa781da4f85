#include "probes/gpu_probe.h"

#include "kernels/base/error.h"

namespace ft {

Applies GpuProbe::applies(const ProbeContext& context) const {
  if (context.base.device == Device::kHost) return {false, std::string(text_.on_host)};
  return applies_on_gpu(context);
}

void GpuProbe::require_applies(const ProbeContext& context) const {
  const Applies here = applies(context);
  if (here.yes) return;
  throw Error(ErrorKind::kFailed, {.what = "probe does not apply: " + here.reason, .value = std::string(text_.id)});
}

void GpuProbe::verify(ProbeContext& context) {
  require_applies(context);
  if (mismatch_.empty()) return;
  throw Error(ErrorKind::kFailed, {.what = std::string(text_.id) + " moved wrong data", .value = mismatch_});
}

}  // namespace ft
