// The family's operations on a CUDA device: each is one or a few launches on the main stream, captured or not.
#include "engine/runtime/cuda/cuda_backend_impl.h"
#include "kernels/base/bf16.h"
#include "kernels/base/error.h"

namespace ft {

void CudaBackend::embed(const EmbedSpec& spec) {
  const EmbeddingTable& embedding = (*weights_)[spec.table];
  const InputLayout in = inputs();
  cuda::EmbedArgs args;
  args.table = embedding.rows;
  args.width = embedding.width;
  args.ids = input<int32_t>(in.ids);
  args.tokens = count_;
  args.out = rows(spec.to).data;
  args.out_stride = rows(spec.to).width;
  args.scale = round_to_bf16(spec.scale);
  args.copies = spec.copies;
  if (!decode_) return cuda::embed(args, main_.handle());
  // The first operation of a step: the inputs come with it.
  args.ids = reinterpret_cast<const int32_t*>(inputs_host_.device() + in.ids);
  cuda::begin_step({inputs_host_.device(), inputs_.data(), in.bytes, args}, main_.handle());
}

// Rows of a slot, normed if `norm` has a weight, as the input of products.
cuda::MatvecInput CudaBackend::input_of(Slot from, const Norm& norm) const {
  const Rows x = rows(from);
  cuda::MatvecInput input;
  input.x = x.data;
  input.x_stride = x.width;
  input.norm_w = vector_or_null(norm.weight);
  input.norm_eps = norm.eps;
  input.scratch = packed_.as<uint32_t>();
  return input;
}

cuda::MatvecOutput CudaBackend::output_of(const Linear& output, bool add) const {
  const Rows y = rows(output.to);
  return {(*weights_)[output.weight], vector_or_null(output.bias), y.data, y.width, add};
}

void CudaBackend::linear(Slot from, const Norm& norm, std::initializer_list<Linear> outputs) {
  if (!decode_) return prefill_linear(from, norm, outputs);
  cuda::MatvecArgs args;
  args.input = input_of(from, norm);
  args.tokens = count_;
  for (const Linear& output : outputs) {
    if (args.output_count == cuda::kMaxMatvecOutputs) {
      cuda::matvec(args, main_.handle());
      args.input = {.words = args.input.scratch};  // packed by the first launch
      args.output_count = 0;
    }
    args.outputs[args.output_count++] = output_of(output, false);
  }
  cuda::matvec(args, main_.handle());
}

void CudaBackend::linear_add(Slot from, const Linear& output) {
  if (!decode_) return prefill_linear_add(from, output);
  cuda::MatvecArgs args;
  args.input = input_of(from, {});
  args.tokens = count_;
  args.outputs[args.output_count++] = output_of(output, true);
  cuda::matvec(args, main_.handle());
}

void CudaBackend::glu(const GluSpec& spec) {
  const Rows gate = rows(spec.gate), up = rows(spec.up), y = rows(spec.to);
  cuda::glu({spec.glu, gate.data, up.data, gate.width, up.width, count_, spec.width, y.data, y.width}, main_.handle());
}

void CudaBackend::norm(Slot from, const Norm& norm, Slot to) {
  const Rows x = rows(from), y = rows(to);
  cuda::RmsnormPackArgs args;
  args.x = x.data;
  args.x_stride = x.width;
  args.w = (*weights_)[norm.weight];
  args.eps = norm.eps;
  args.tokens = count_;
  args.cols = static_cast<int64_t>(parts_.weights[norm.weight].size());
  args.y = y.data;
  args.y_stride = y.width;
  cuda::rmsnorm_pack(args, main_.handle());
}

void CudaBackend::add(const AddSpec& spec) {
  const Rows x = rows(spec.from), to = rows(spec.to);
  FT_CHECK(x.width == to.width);
  cuda::add({x.data, x.width, vector_or_null(spec.norm.weight), spec.norm.eps, to.data, to.width, count_, to.width,
             vector_or_null(spec.scale)},
            main_.handle());
}

void CudaBackend::logits(const LogitsSpec& spec) {
  if (!decode_) return prefill_logits(spec);
  cuda::MatvecArgs args;
  args.input = input_of(spec.from, spec.norm);
  args.tokens = count_;
  args.outputs[args.output_count++] = {(*weights_)[spec.head], nullptr, logits_.as<float>(), vocab_, false};
  cuda::matvec(args, main_.handle());  // launch_end brings the rows to the host
  softcap(count_, spec.softcap);
}

void CudaBackend::softcap(int64_t rows, float cap) {
  if (cap != 0) cuda::softcap({logits_.as<float>(), rows * vocab_, cap}, main_.handle());
}

}  // namespace ft
