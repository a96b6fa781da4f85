// device_bench_chain: a decode step's layers as the engine launches them when every expert is resident: the geometries
// of BENCHMARKS.md, one token, a short context, every layer's weights its own and cold. Microseconds a layer of the
// whole chain and of the chain with one node left out: the difference is what the node costs where it stands; and what
// an expert that all tokens share adds, in the chain and on a stream beside it. Prints a table; judges nothing.
//
// device_bench_chain copier: the same chain beside the copier of promotions (moe.h): one that leaves at once, one that
// has nothing to copy, one that copies from the first layer to the last, by so many blocks each.
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <string_view>
#include <utility>

#include "kernels/cuda/memory_read.h"
#include "kernels/cuda/ops.h"
#include "kernels/ops/activations.h"
#include "tests/device/moe_rig.h"

namespace ft::device_test {
namespace {

struct Geometry {
  const char* name;
  int64_t hidden, intermediate;
  int experts, top_k, layers;
};
constexpr Geometry kGeometries[] = {
    {"A", 2048, 768, 128, 8, 24}, {"B", 2560, 640, 512, 10, 12}, {"C", 4096, 2048, 256, 6, 8}};
constexpr int64_t kDim = 128, kPositions = 1024, kPosition = 100;
constexpr int kHeads = 32, kKvHeads = 4, kRuns = 15;
constexpr int64_t kShared = 512;  // of the shared expert: bf16, with a gate
constexpr int64_t kQueryWidth = kHeads * kDim, kKvWidth = kKvHeads * kDim;

enum Node : unsigned {
  kQkv = 1,
  kAttention = 2,
  kOut = 4,
  kRoute = 8,
  kGateUp = 16,
  kDown = 32,
  kMerge = 64,
  kAll = 127,
  kSharedExpert = 128,
  kBeside = 256,  // the shared expert
};

struct Matrix {
  PackedLayout layout;
  int64_t offset = 0;
};

// The copier beside a chain. copies: of kCopyBytes each; 0: it has nothing to do.
struct Beside {
  int blocks = 0;  // 0: no copier
  bool leaves = false;
  int copies = 0;
};
constexpr int64_t kCopyBytes = int64_t{2} << 20;
constexpr int kMostCopies = 64;
constexpr uint64_t kCopierTimeoutNs = 1'000'000'000;

class Chain {
 public:
  explicit Chain(const Geometry& g)
      : g_(g),
        rig_({g.layers, g.experts, g.layers * g.experts, 1, g.top_k, g.hidden}),
        expert_(expert_layout(FormatId::kNvfp4, g_.hidden, g_.intermediate)) {
    const FormatInfo& bf16 = format_info(FormatId::kBf16);
    for (const auto& [rows, cols] : {std::pair{kQueryWidth, g_.hidden},
                                     {kKvWidth, g_.hidden},
                                     {kKvWidth, g_.hidden},
                                     {g_.hidden, kQueryWidth},
                                     {int64_t{g_.experts}, g_.hidden},
                                     {kShared, g_.hidden},
                                     {kShared, g_.hidden},
                                     {1, g_.hidden},
                                     {g_.hidden, kShared}}) {
      matrices_.push_back({bf16.layout(rows, cols), layer_bytes_});
      layer_bytes_ += matrices_.back().layout.bytes;
    }
    dense_ = zeros(g_.layers * layer_bytes_);
    fill_dense();
    slots_ = zeros(int64_t{g_.layers} * g_.experts * expert_.bytes);
    residual_ = zeros(g_.hidden * 4);
    norm_ = zeros(g_.hidden * 4);
    row_ = cuda::PinnedBuffer(g_.hidden * 4);
    Random random(5);
    for (int64_t i = 0; i < g_.hidden; ++i) row_.as_host<float>()[i] = static_cast<float>(random.below(2001)) * 1e-3f;
    for (const cuda::DeviceBuffer* to : {&residual_, &norm_}) {
      cuda::copy_to_device(to->data(), row_.host(), row_.bytes(), stream());
    }
    q_ = zeros(kQueryWidth * 4), k_ = zeros(kKvWidth * 4), v_ = zeros(kKvWidth * 4), attended_ = zeros(kQueryWidth * 4);
    words_ = zeros(activation_words(kQueryWidth) * 4);
    scratch_words_ = zeros(activation_words(kQueryWidth) * 4);
    angles_ = zeros(kPositions * kDim / 2 * 4);
    cache_ = zeros(g_.layers * kPositions * 2 * kKvWidth * 2);
    attention_scratch_ = zeros(cuda::attention_decode_scratch_bytes(1, kHeads, kKvHeads, kDim, kPositions));
    sequence_ = zeros(16), position_ = zeros(16), router_ = zeros(65536);
    cuda::PinnedBuffer position(16);
    *position.as_host<int64_t>() = kPosition;
    cuda::copy_to_device(position_.data(), position.host(), 8, stream());
    activated_ = zeros(g_.top_k * activation_words(g_.intermediate) * 4);
    rows_ = zeros(g_.top_k * g_.hidden * 4);
    shared_ = zeros((2 * kShared + 64 + activation_words(kShared) + g_.hidden) * 4);
    SlotTable::Content content;
    for (int key = 0; key < g_.layers * g_.experts; ++key) content.key_of_slot.push_back(key);
    rig_.restore(content);
    rig_.args.slots = slots_.data();
    rig_.args.slot_bytes = rig_.args.blob_bytes = expert_.bytes;
    rig_.args.tokens = 1;
    rig_.args.x = words_.as<uint32_t>();
    set_arguments();
    rig_.stream.synchronize();
  }

  // Microseconds a layer.
  double us(unsigned nodes, const Beside& beside = {}) {
    if (beside.blocks > 0 && link_words_.bytes() == 0) make_queue();
    cuda::GraphCapture capture(stream());
    if (beside.blocks > 0) start_copier(beside);
    for (int layer = 0; layer < g_.layers; ++layer) launch_layer(layer, nodes);
    if (beside.blocks > 0) join_copier(beside);
    const cuda::Graph graph = capture.end();
    std::vector<double> seconds;
    for (int run = 0; run <= kRuns; ++run) {
      cuda::Event begin(true), end(true);
      begin.record(stream());
      graph.launch(stream());
      end.record(stream());
      end.synchronize();
      if (run > 0) seconds.push_back(end.seconds_since(begin));
    }
    std::sort(seconds.begin(), seconds.end());
    return seconds[seconds.size() / 2] * 1e6 / g_.layers;
  }

  // Microseconds of the link for the copies alone.
  double copy_us(const Beside& beside) {
    cuda::Event begin(true), end(true);
    double best = 1;
    for (int run = 0; run < 5; ++run) {
      set_queue(beside.copies, false);
      begin.record(stream());
      cuda::CopierArgs args = copier(beside);
      args.drain = true;
      cuda::copy_queued(args, stream());
      end.record(stream());
      end.synchronize();
      best = std::min(best, end.seconds_since(begin));
    }
    return best * 1e6;
  }

  // Of the residual and the cache's last keys after one step from the same start: all ways must agree.
  uint64_t hash() {
    cuda::copy_to_device(residual_.data(), row_.host(), row_.bytes(), stream());
    for (int layer = 0; layer < g_.layers; ++layer) launch_layer(layer, kAll);
    cuda::PinnedBuffer row(g_.hidden * 4);
    cuda::copy_to_host(row.host(), residual_.data(), row.bytes(), stream());
    rig_.stream.synchronize();
    uint64_t sum = 0;
    for (int64_t i = 0; i < g_.hidden; ++i) sum = sum * 31 + row.as_host<uint32_t>()[i];
    return sum;
  }

  double read_us(int64_t bytes) {
    cuda::GraphCapture capture(stream());
    for (int i = 0; i < 8; ++i) {
      cuda::read_memory(slots_.data() + i * bytes, bytes, router_.as<uint32_t>(), stream());
    }
    const cuda::Graph graph = capture.end();
    cuda::Event begin(true), end(true);
    double best = 1;
    for (int run = 0; run < 5; ++run) {
      begin.record(stream());
      graph.launch(stream());
      end.record(stream());
      end.synchronize();
      best = std::min(best, end.seconds_since(begin));
    }
    return best * 1e6 / 8;
  }

 private:
  cuda::StreamHandle stream() { return rig_.stream.handle(); }
  cuda::DeviceBuffer zeros(int64_t bytes) {
    cuda::DeviceBuffer buffer(bytes);
    cuda::fill_zero(buffer.data(), bytes, stream());
    return buffer;
  }
  void fill_dense() {
    const FormatInfo& bf16 = format_info(FormatId::kBf16);
    for (const Matrix& m : matrices_) {
      cuda::PinnedBuffer host(m.layout.bytes);
      bf16.synthesize(m.layout, 7, 0, m.layout.row_tiles, host.host());
      for (int layer = 0; layer < g_.layers; ++layer) {
        cuda::copy_to_device(dense_.data() + layer * layer_bytes_ + m.offset, host.host(), m.layout.bytes, stream());
      }
      rig_.stream.synchronize();
    }
  }
  PackedMatrix matrix(int layer, int index) const {
    const Matrix& m = matrices_[static_cast<size_t>(index)];
    return {m.layout, dense_.data() + layer * layer_bytes_ + m.offset, 1.0f};
  }
  void set_arguments() {
    cuda::AttentionPrepareArgs& p = attention_.prepare;
    p.q = q_.as<float>(), p.q_stride = kQueryWidth;
    p.k = k_.as<float>(), p.v = v_.as<float>(), p.kv_stride = kKvWidth;
    p.tokens = 1, p.heads = kHeads, p.kv_heads = kKvHeads, p.head_dim = kDim;
    p.q_norm = norm_.as<float>(), p.k_norm = norm_.as<float>(), p.norm_eps = 1e-6f;
    p.cos = p.sin = angles_.as<float>(), p.rotary_half = kDim / 2;
    p.sequence = sequence_.as<int32_t>(), p.position = position_.as<int64_t>();
    attention_.scale = 0.1f;
    attention_.out = attended_.as<float>(), attention_.out_stride = kQueryWidth;
    attention_.scratch = attention_scratch_.data();
    route_.x = residual_.as<float>(), route_.x_stride = g_.hidden;
    route_.norm_w = norm_.as<float>(), route_.norm_eps = 1e-6f;
    route_.words = words_.as<uint32_t>();
    route_.arrived = router_.as<uint32_t>();
    route_.logits = router_.as<float>() + 64;
    route_.top.tokens = 1, route_.top.k = g_.top_k, route_.top.renormalize = true;
    route_.top.ids = router_.as<int32_t>() + 2048;
    route_.top.weights = router_.as<float>() + 3072;
    rig_.args.ids = route_.top.ids;
    experts_.layout = expert_;
    const cuda::LayerWork& work = rig_.args.work;
    experts_.items = work.items;
    experts_.item_begin = work.item_bounds, experts_.item_end = work.item_bounds + 1;
    experts_.max_item_pairs = 1, experts_.max_items = g_.top_k;
    experts_.pairs = work.pairs, experts_.top_k = g_.top_k;
    experts_.x = words_.as<uint32_t>();
    experts_.activated = activated_.as<uint32_t>();
    experts_.out = rows_.as<float>(), experts_.out_stride = g_.hidden;
    merge_.ids = route_.top.ids, merge_.weights = route_.top.weights, merge_.tokens = 1, merge_.top_k = g_.top_k;
    merge_.rows = rows_.as<float>(), merge_.rows_stride = g_.hidden;
    merge_.from_host = work.from_host;
    merge_.host_rows = rows_.as<float>(), merge_.host_stride = g_.hidden;
    merge_.cols = g_.hidden, merge_.out = residual_.as<float>(), merge_.out_stride = g_.hidden, merge_.add = true;
    wait_ = {rig_.args.mailbox.box, work.ticket, 0, 1'000'000, rig_.args.counters};
  }
  void product(cuda::MatvecArgs args, const float* x, int64_t cols, bool normed) {
    args.tokens = 1;
    args.input = {nullptr, x, cols, normed ? norm_.as<float>() : nullptr, 1e-6f, scratch_words_.as<uint32_t>()};
    cuda::matvec(args, stream());
  }
  void launch_layer(int layer, unsigned nodes) {
    if ((nodes & kQkv) != 0) {
      cuda::MatvecArgs qkv;
      qkv.output_count = 3;
      qkv.outputs[0] = {matrix(layer, 0), nullptr, q_.as<float>(), kQueryWidth, false};
      qkv.outputs[1] = {matrix(layer, 1), nullptr, k_.as<float>(), kKvWidth, false};
      qkv.outputs[2] = {matrix(layer, 2), nullptr, v_.as<float>(), kKvWidth, false};
      product(qkv, residual_.as<float>(), g_.hidden, true);
    }
    if ((nodes & kAttention) != 0) {
      attention_.prepare.kv = {reinterpret_cast<bf16*>(cache_.data() + layer * kPositions * 2 * kKvWidth * 2),
                               kPositions};
      cuda::attention_decode(attention_, stream());
    }
    if ((nodes & kOut) != 0) {
      cuda::MatvecArgs out;
      out.output_count = 1;
      out.outputs[0] = {matrix(layer, 3), nullptr, residual_.as<float>(), g_.hidden, true};
      product(out, attended_.as<float>(), kQueryWidth, false);
    }
    if ((nodes & kRoute) != 0) {
      route_.router = matrix(layer, 4);
      rig_.args.layer = layer;
      cuda::route_and_plan(route_, rig_.args, stream());
    }
    const bool shares = (nodes & kSharedExpert) != 0, beside = shares && (nodes & kBeside) != 0;
    if (beside) {
      forked_.record(stream());
      forked_.make_wait(beside_.handle());
    }
    merge_.shared = {};
    if (shares) launch_shared(layer, beside ? beside_.handle() : stream());
    if (beside) joined_.record(beside_.handle());
    if ((nodes & kGateUp) != 0) cuda::expert_gate_up(experts_, stream());
    if ((nodes & kDown) != 0) cuda::expert_down(experts_, stream());
    if (beside) joined_.make_wait(stream());
    merge_.after_join = beside;
    if ((nodes & kMerge) != 0) cuda::wait_and_merge(wait_, merge_, stream());
  }
  // The queue's words as a step's plans would leave them, and the copies that they count.
  void set_queue(int copies, bool closed) {
    auto* words = link_host_.as_host<uint32_t>() + (closed ? cuda::kLinkWords : 0);
    std::fill_n(words, cuda::kLinkWords, 0);
    words[cuda::queued_word(cuda::kPromotion)] = static_cast<uint32_t>(copies);
    words[cuda::kClosed] = closed ? 1 : 0;
    cuda::copy_to_device(link_words_.data(), words, cuda::kLinkWords * 4, stream());
  }
  void make_queue() {
    link_words_ = zeros(256);
    link_host_ = cuda::PinnedBuffer(2 * cuda::kLinkWords * 4);
    copied_ = zeros(kMostCopies * kCopyBytes);
    bank_ = cuda::PinnedBuffer(kMostCopies * kCopyBytes);
    arrived_ = zeros(kMostCopies * cuda::kArrivalParts * 4);
    copies_ = zeros(kMostCopies * static_cast<int64_t>(sizeof(cuda::Copy)));
    cuda::PinnedBuffer list(copies_.bytes());
    for (int i = 0; i < kMostCopies; ++i) {
      list.as_host<cuda::Copy>()[i] = {bank_.as_device<std::byte>() + i * kCopyBytes,
                                       copied_.data() + i * kCopyBytes,
                                       arrived_.as<uint32_t>() + i * cuda::kArrivalParts,
                                       {.all = kCopyBytes / cuda::kUnitBytes, .gate_up = 1, .tail = 1}};
    }
    cuda::copy_to_device(copies_.data(), list.host(), copies_.bytes(), stream());
    rig_.stream.synchronize();
  }
  cuda::CopierArgs copier(const Beside& beside) {
    cuda::LinkQueue queue;
    queue.copies[cuda::kPromotion] = queue.copies[cuda::kPrefetch] = copies_.as<cuda::Copy>();
    queue.words = link_words_.as<uint32_t>();
    return {.queue = queue, .blocks = beside.blocks, .box = rig_.args.mailbox.box, .timeout_ns = kCopierTimeoutNs};
  }
  void start_copier(const Beside& beside) {
    set_queue(beside.copies, beside.leaves);
    link_forked_.record(stream());
    link_forked_.make_wait(link_.handle());
    cuda::copy_queued(copier(beside), link_.handle());
  }
  void join_copier(const Beside& beside) {
    if (!beside.leaves) cuda::close_queue(copier(beside).queue, stream());
    link_joined_.record(link_.handle());
    link_joined_.make_wait(stream());
  }
  void launch_shared(int layer, cuda::StreamHandle stream_of_it) {
    float *gate = shared_.as<float>(), *up = gate + kShared, *token = up + kShared;
    auto* words = reinterpret_cast<uint32_t*>(token + 64);
    auto* out = reinterpret_cast<float*>(words + activation_words(kShared));
    cuda::MatvecArgs first, last;
    first.tokens = last.tokens = 1;
    first.input.words = words_.as<uint32_t>();
    first.output_count = 3;
    first.outputs[0] = {matrix(layer, 5), nullptr, gate, kShared, false};
    first.outputs[1] = {matrix(layer, 6), nullptr, up, kShared, false};
    first.outputs[2] = {matrix(layer, 7), nullptr, token, 1, false};
    cuda::matvec(first, stream_of_it);
    cuda::glu({{}, gate, up, kShared, kShared, 1, kShared, nullptr, 0, words}, stream_of_it);
    last.input.words = words;
    last.output_count = 1;
    last.outputs[0] = {matrix(layer, 8), nullptr, out, g_.hidden, false};
    cuda::matvec(last, stream_of_it);
    merge_.shared = {out, g_.hidden, token};
  }

  Geometry g_;
  PlanRig rig_;
  ExpertLayout expert_;
  std::vector<Matrix> matrices_;
  int64_t layer_bytes_ = 0;
  cuda::DeviceBuffer dense_, slots_, residual_, norm_, q_, k_, v_, attended_, words_, scratch_words_, angles_, cache_,
      attention_scratch_, sequence_, position_, router_, activated_, rows_, shared_;
  cuda::Stream beside_, link_;
  cuda::Event forked_, joined_, link_forked_, link_joined_;
  cuda::DeviceBuffer link_words_, copied_, arrived_, copies_;
  cuda::PinnedBuffer link_host_, bank_;
  cuda::PinnedBuffer row_;
  cuda::AttentionDecodeArgs attention_;
  cuda::RouteArgs route_;
  cuda::ExpertArgs experts_;
  cuda::MergeArgs merge_;
  cuda::WaitArgs wait_;
};

void print(Chain& chain) {
  const double all = chain.us(kAll);
  std::printf("  all %.2f | without:", all);
  constexpr std::pair<unsigned, const char*> kLeftOut[] = {
      {kQkv, "qkv"},     {kAttention, "attention"},    {kOut, "out"},
      {kRoute, "route"}, {kGateUp | kDown, "experts"}, {kMerge, "merge"}};
  for (const auto& [nodes, label] : kLeftOut) std::printf(" %s %.2f;", label, all - chain.us(kAll & ~nodes));
  std::printf(" | shared expert: in the chain %.2f; beside it %.2f", chain.us(kAll | kSharedExpert) - all,
              chain.us(kAll | kSharedExpert | kBeside) - all);
  std::printf(" | alone: merge, qkv %.2f; qkv %.2f; out %.2f; route %.2f; merge %.2f | residual %08llx\n",
              chain.us(kMerge | kQkv), chain.us(kQkv), chain.us(kOut), chain.us(kRoute), chain.us(kMerge),
              static_cast<unsigned long long>(chain.hash()) & 0xffffffff);
  std::fflush(stdout);
}

}  // namespace

constexpr std::pair<unsigned, const char*> kOneNode[] = {{kQkv, "qkv"},     {kAttention, "attention"}, {kOut, "out"},
                                                         {kRoute, "route"}, {kGateUp, "gate_up"},      {kDown, "down"},
                                                         {kMerge, "merge"}};

// What a copier adds to a layer of the chain and to each of its nodes by itself, a chain of its own; then what a chain
// takes that is copied beside from its first layer to its last, for more copies one by one: the step from one line to
// the next is the price of 2 MiB.
void print_copier(Chain& chain, int layers) {
  const double alone = chain.us(kAll);
  std::printf("  alone %.2f us a layer\n", alone);
  for (const int blocks : {1, 2, 4, cuda::kCopierBlocks, 16}) {
    const Beside leaves{blocks, true, 0}, idle{blocks, false, 0};
    std::printf("  %2d blocks: leaves at once %+.2f; idle %+.2f |", blocks, chain.us(kAll, leaves) - alone,
                chain.us(kAll, idle) - alone);
    for (const auto& [node, label] : kOneNode) {
      std::printf(" %s %.2f %+.2f;", label, chain.us(node), chain.us(node, idle) - chain.us(node));
    }
    std::printf("\n    copies of 2 MiB beside all layers:");
    for (const int copies : {1, 2, 4, 8, 16}) {
      const Beside busy{blocks, false, copies};
      const double step = (chain.us(kAll, busy) - alone) * layers;
      std::printf(" %d: alone %.0f us, adds %.0f;", copies, chain.copy_us(busy), step);
    }
    std::printf("\n");
    std::fflush(stdout);
  }
}

void bench_copier() {
  for (const Geometry& geometry : kGeometries) {
    Chain chain(geometry);
    std::printf("geometry %s, %d layers\n", geometry.name, geometry.layers);
    print_copier(chain, geometry.layers);
  }
}

void bench_chain() {
  for (const Geometry& geometry : kGeometries) {
    Chain chain(geometry);
    std::printf("geometry %s; a plain read of 201 MB in a graph: %.2f us\n", geometry.name, chain.read_us(201326592));
    print(chain);
  }
}

}  // namespace ft::device_test

int main(int argc, char** argv) {
  const std::string_view part = argc > 1 ? argv[1] : "";
  if (argc > 2 || (argc > 1 && part != "copier")) {
    std::fputs("usage: device_bench_chain [copier]\n", stderr);
    return 2;
  }
  std::string reason;
  if (ft::cuda::device_count(&reason) == 0) {
    std::printf("skipped: no device (%s)\n", reason.c_str());
    return 0;
  }
  ft::cuda::use_device(0);
  if (part == "copier") {
    ft::device_test::bench_copier();
  } else {
    ft::device_test::bench_chain();
  }
  return 0;
}
