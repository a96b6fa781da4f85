// Gated residual streams and n-grams on a CUDA device. A site's products are ordinary ones: in prompts those of tensor
// cores.
#include "engine/runtime/cuda/cuda_backend_impl.h"
#include "kernels/base/error.h"
#include "kernels/cuda/ngrams.h"
#include "kernels/cuda/streams.h"

namespace ft {

void CudaBackend::read_gated_streams(const StreamsSpec& spec, Slot to) {
  const Rows x = rows(Slot::kResidual), normed = rows(Slot::kStreamNormed), low = rows(Slot::kStreamLow);
  const Rows factors = rows(Slot::kStreamFactors), gate = rows(Slot::kStreamGate);
  const int64_t width = x.width / spec.streams;
  FT_CHECK(width * spec.streams == x.width && factors.width >= spec.streams);
  cuda::norm_streams(
      {x.data, x.width, count_, spec.streams, width, (*weights_)[spec.norm], spec.norm_eps, normed.data, normed.width},
      main_.handle());
  if (spec.writes) {
    linear(Slot::kStreamNormed, {}, {{spec.down, {}, Slot::kStreamLow}, {spec.write, {}, Slot::kStreamFactors}});
  } else {
    linear(Slot::kStreamNormed, {}, {{spec.down, {}, Slot::kStreamLow}});
  }
  const float share = 1.0f / static_cast<float>(spec.streams);
  cuda::SquashStreamsArgs squash;
  squash.low = {low.data, low.width, low.width, share, GateKind::kSilu, 1};
  if (spec.writes) squash.write = {factors.data, factors.width, spec.streams, share, GateKind::kSigmoid, 2};
  squash.tokens = count_;
  cuda::squash_streams(squash, main_.handle());
  linear(Slot::kStreamLow, {}, {{spec.up, {}, Slot::kStreamGate}});
  cuda::gated_streams_read(
      {normed.data, normed.width, gate.data, gate.width, count_, spec.streams, width, rows(to).data, rows(to).width},
      main_.handle());
}

void CudaBackend::embed_ngrams(const NgramEmbedSpec& spec) {
  const Rows to = rows(Slot::kNgram);
  FT_CHECK(to.width == ngrams_.width());
  if (decode_) {
    cuda::read_pinned_rows({ngrams_.device_rows(spec.table), count_, to.width, to.data, to.width}, main_.handle());
    return;
  }
  cuda::copy_to_device(to.data, ngrams_.host_rows(spec.table), count_ * to.width * int64_t{sizeof(float)},
                       main_.handle());
}

void CudaBackend::add_ngrams(const NgramAddSpec& spec) {
  const Rows x = rows(Slot::kResidual), key = rows(Slot::kNgramKey), value = rows(Slot::kNgramValue);
  const Rows normed = rows(Slot::kStreamNormed);
  const int64_t width = x.width / spec.streams;
  FT_CHECK(width * spec.streams == x.width);
  cuda::NgramAddArgs args;
  args.x = x.data;
  args.x_stride = x.width;
  args.tokens = count_;
  args.streams = spec.streams;
  args.width = width;
  args.key = key.data;
  args.key_stride = key.width;
  args.value = value.data;
  args.value_stride = value.width;
  args.normed = normed.data;
  args.normed_stride = normed.width;
  args.key_norm = (*weights_)[spec.key_norm];
  args.query_norm = (*weights_)[spec.query_norm];
  args.conv_norm = (*weights_)[spec.conv_norm];
  args.norm_eps = spec.norm_eps;
  args.conv = (*weights_)[spec.conv];
  args.taps = static_cast<int>(spec.taps);
  args.dilation = static_cast<int>(spec.dilation);
  const int64_t floats = NgramAddSpec::history_floats(spec.taps, spec.dilation, x.width);
  args.history = sequences_.state_part(spec.state_begin, floats);
  args.sequence_floats = sequences_.state_floats();
  args.sequence = input<int32_t>(inputs().sequence);
  args.position = input<int64_t>(inputs().position);
  if (!decode_) {
    args.runs = prefill_.runs();
    args.run_count = static_cast<int>(tokens_->runs.size());
  }
  cuda::add_ngrams(args, main_.handle());
}

}  // namespace ft
