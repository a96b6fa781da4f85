// Reference of mixed residual streams: kernels/ops/streams.h.
#include "kernels/ops/streams.h"

#include "kernels/reference/scalar_math.h"

namespace ft::reference {
namespace {

float sigmoid(float x) { return div(1.0f, add(1.0f, exp(-x))); }

// count values, `stride` apart, divided by (their sum + eps).
void scale_to_one(float* c, int64_t count, int64_t stride, float eps) {
  float sum = 0.0f;
  for (int64_t i = 0; i < count; ++i) sum = add(sum, c[i * stride]);
  for (int64_t i = 0; i < count; ++i) c[i * stride] = div(c[i * stride], add(sum, eps));
}

// c: (streams, streams), row p first.
void sinkhorn(float* c, int64_t streams, int64_t rounds, float eps) {
  for (int64_t p = 0; p < streams; ++p) {
    float* row = c + p * streams;
    float largest = row[0], sum = 0.0f;
    for (int64_t q = 1; q < streams; ++q) largest = max(row[q], largest);
    for (int64_t q = 0; q < streams; ++q) sum = add(sum, row[q] = exp(sub(row[q], largest)));
    for (int64_t q = 0; q < streams; ++q) row[q] = add(div(row[q], sum), eps);
  }
  for (int64_t round = 0; round < rounds; ++round) {
    for (int64_t p = 0; p < streams && round > 0; ++p) scale_to_one(c + p * streams, streams, 1, eps);
    for (int64_t q = 0; q < streams; ++q) scale_to_one(c + q, streams, streams, eps);
  }
}

float signed_root(float s) {
  if (s == 0.0f) return 0.0f;
  const float root = sqrt(max(kStreamGateFloor, std::fabs(s)));
  return s < 0.0f ? -root : root;
}

}  // namespace

void dot_rows(const DotRowsArgs& args) {
  for (int64_t r = 0; r < args.rows; ++r) {
    float lanes[kLanes] = {};
    for (int64_t i = 0; i < args.cols; ++i) {
      lanes[i % kLanes] = fma(args.w[r * args.cols + i], args.x[i], lanes[i % kLanes]);
    }
    args.y[r] = tree_sum(lanes);
  }
}

void stream_factors(const StreamFactorsArgs& args) {
  const int64_t streams = args.streams;
  const float r = div(1.0f, sqrt(add(div(args.squares, static_cast<float>(args.cols)), args.norm_eps)));
  const auto logit = [&](int64_t i, int part) {
    return add(mul(mul(args.logits[i], r), args.scale[part]), args.base[i]);
  };
  for (int64_t i = 0; i < streams; ++i) args.read[i] = add(sigmoid(logit(i, 0)), args.eps);
  if (args.mix == nullptr) return;
  for (int64_t i = 0; i < streams; ++i) args.write[i] = mul(2.0f, sigmoid(logit(streams + i, 1)));
  float c[kMaxStreams * kMaxStreams];
  for (int64_t i = 0; i < streams * streams; ++i) c[i] = logit(2 * streams + i, 2);
  sinkhorn(c, streams, args.rounds, args.eps);
  for (int64_t p = 0; p < streams; ++p) {
    for (int64_t q = 0; q < streams; ++q) args.mix[q * streams + p] = c[p * streams + q];
  }
}

void squash(const SquashArgs& args) {
  for (int64_t i = 0; i < args.count; ++i) {
    const float g = mul(args.x[i], args.scale);
    const float activated = div(args.kind == GateKind::kSilu ? g : 1.0f, add(1.0f, exp(-g)));
    args.x[i] = mul(activated, args.factor);
  }
}

void stream_gates(const StreamGatesArgs& args) {
  for (int64_t i = 0; i < args.streams; ++i) args.x[i] = sigmoid(signed_root(div(args.x[i], args.root)));
}

}  // namespace ft::reference
