// Sequences of every family, DeepSeek-V4 with the arithmetic of transformers and with its authors'. Checked against:
// one pass over the same tokens, which a prompt in chunks, decode after a prompt and a sequence that was set back must
// give too: in reference numerics within 1e-5, row by row, in serve numerics the same bits. (same_bits_test.cpp has
// more chunks in serve numerics, golden_test.cpp the logits themselves.)
#include <doctest/doctest.h>

#include <algorithm>
#include <set>

#include "tests/runtime/model_fixture.h"

using namespace ft;
using namespace ft::test;

namespace {

struct Kind {
  const char* folder;
  std::optional<DeepseekArithmetic> arithmetic = std::nullopt;
};

constexpr Kind kKinds[] = {{"golden/qwen3_moe.b"},
                           {"golden/gpt_oss.small"},
                           {"golden/gemma4.older"},
                           {"golden/gemma4.plain"},
                           {"golden/qwen3_5_moe_text.b"},
                           {"golden/qwen4_exp.published"},
                           {"golden/deepseek_v4.published", DeepseekArithmetic::kTransformers},
                           {"golden/deepseek_v4.published", DeepseekArithmetic::kAuthors}};
constexpr int64_t kLongest = 262;  // past two windows of 128 tokens, the longest of these models

// Texts that differ in every token; what ends a segment of n-grams (5) is in both.
std::vector<int32_t> text(int64_t count, int64_t vocab, int64_t seed) {
  std::vector<int32_t> ids;
  for (int64_t i = 0; i < count; ++i) {
    ids.push_back(i % 11 == 4 + seed ? 5 : static_cast<int32_t>((i * i * 7 + 3 * i + 11 + 29 * seed) % vocab));
  }
  return ids;
}

EngineConfig config_of(const Kind& kind, const LoadedModel& model, Numerics numerics, int chunk) {
  EngineConfig config = config_for(model, Strategy::kCpu, 0, 2);
  config.numerics = numerics;
  config.deepseek_arithmetic = kind.arithmetic;
  config.prefill_chunk = chunk;
  return config;
}

// Lengths at which something of the model closes, wraps, or is chosen from for the first time.
std::set<int64_t> boundaries(const ModelGeometry& geometry) {
  std::set<int64_t> at = {1, 2, 3, 6, 9, 64, 128};  // taps of convolutions; splits of attention, chunks of delta nets
  for (const KvLayer& layer : geometry.kv) {
    if (layer.window > 0) at.insert({layer.window, kv_positions(layer, kLongest, 1)});
  }
  for (const CompressedLayer& layer : geometry.compressed) {
    at.insert({layer.window, layer.ring_rows(kLongest), layer.open_rows(), layer.open_ring()});
    for (int64_t entries = 1; entries <= 3; ++entries) at.insert(entries * layer.ratio);
    if (layer.index_dim > 0) at.insert({layer.index_top_k * layer.ratio, (layer.index_top_k + 1) * layer.ratio});
  }
  std::set<int64_t> around;
  for (const int64_t length : at) {
    for (const int64_t near : {length - 1, length, length + 1}) {
      if (near >= 1 && near < kLongest - 2) around.insert(near);
    }
  }
  return around;
}

struct Rows {
  int64_t vocab = 0;
  std::vector<float> logits;
  std::span<const float> row(int64_t position) const {
    return std::span(logits).subspan(static_cast<size_t>(position * vocab), static_cast<size_t>(vocab));
  }
};

bool agree(Numerics numerics, std::span<const float> got, std::span<const float> expected) {
  if (numerics == Numerics::kReference) return relative_error(got, expected) <= 1e-5;
  return std::equal(got.begin(), got.end(), expected.begin(), expected.end());
}

Rows rows_of(Engine& engine, std::span<const int32_t> ids) {
  return {engine.geometry().vocab, run_greedy(engine, ids, 1).prompt_logits};
}

void check_continuations(const Kind& kind, Numerics numerics) {
  const LoadedModel model = model_at(data_path(kind.folder));
  const std::vector<int32_t> ids = text(kLongest, model.family->geometry().vocab, 0);
  Engine whole(model, config_of(kind, model, numerics, kMaxLogitsRows), kPlenty);
  const Rows expected = rows_of(whole, ids);
  for (const int chunk : {1, 3, 31, 64, 100}) {
    CAPTURE(chunk);
    Engine engine(model, config_of(kind, model, numerics, chunk), kPlenty);
    const Rows got = rows_of(engine, ids);
    for (int64_t i = 0; i < kLongest; ++i) {
      CAPTURE(i);
      CHECK(agree(numerics, got.row(i), expected.row(i)));
    }
  }
  for (const int64_t length : boundaries(model.family->geometry())) {
    CAPTURE(length);
    const int sequence = whole.open_sequence();
    const std::span<const int32_t> prompt = std::span(ids).first(static_cast<size_t>(length));
    CHECK(agree(numerics, whole.prefill(sequence, prompt), expected.row(length - 1)));
    for (int64_t i = length; i < length + 3 && i < kLongest; ++i) {
      CHECK(agree(numerics, one_step(whole, sequence, ids[static_cast<size_t>(i)]), expected.row(i)));
    }
    whole.close_sequence(sequence);
  }
}

// Goes back from `held` tokens by 1, 2, .. and on with others, by steps or as a prompt.
class GoingBack {
 public:
  GoingBack(const Kind& kind, Numerics numerics)
      : numerics_(numerics),
        model_(model_at(data_path(kind.folder))),
        held_(forgets(model_.family->geometry()) ? 150 : 70),  // past what is 128 and 64 long
        engine_(model_, config_of(kind, model_, numerics, 16), kPlenty),
        fresh_(model_, config_of(kind, model_, numerics, kMaxLogitsRows), kPlenty),
        first_(text(held_, engine_.geometry().vocab, 0)),
        other_(text(held_, engine_.geometry().vocab, 1)) {}

  bool marks() const { return engine_.geometry().state_floats > 0; }

  void run() {
    sequence_ = engine_.open_sequence();
    const auto least = static_cast<size_t>(least_length());
    engine_.prefill(sequence_, std::span(first_).first(least - 1));
    const SequenceMark too_far = mark();
    std::vector<SequenceMark> kept;
    for (size_t i = least - 1; i < first_.size(); ++i) {
      if (i >= least) kept.push_back(mark());
      one_step(engine_, sequence_, first_[i]);
    }
    CHECK(engine_.can_rewind(sequence_, held_));
    CHECK(engine_.can_rewind(sequence_, int64_t{0}));
    CHECK(engine_.can_rewind(sequence_, too_far) == !forgets(engine_.geometry()));
    for (int64_t back = 1; back <= static_cast<int64_t>(kept.size()); ++back) {
      CAPTURE(back);
      go_back(kept[kept.size() - static_cast<size_t>(back)]);
      CHECK(goes_on_as_fresh(back % 3 == 0));
    }
    engine_.rewind_sequence(sequence_, int64_t{0});
    CHECK(goes_on_as_fresh(false));
  }

 private:
  static bool forgets(const ModelGeometry& geometry) {
    const auto has_window = [](const KvLayer& layer) { return layer.window > 0; };
    return !geometry.compressed.empty() || std::any_of(geometry.kv.begin(), geometry.kv.end(), has_window);
  }
  // That a sequence of held_ tokens goes back to, without one that does not forget.
  int64_t least_length() const { return forgets(engine_.geometry()) ? held_ - kRewindPositions : 2; }

  SequenceMark mark() const {
    if (numerics_ == Numerics::kReference) return {engine_.sequence_length(sequence_), {}};
    return engine_.mark_sequence(sequence_);
  }

  void go_back(const SequenceMark& to) {
    if (!marks()) CHECK(engine_.can_rewind(sequence_, to.length));
    if (marks()) CHECK(!engine_.can_rewind(sequence_, to.length));
    CHECK(engine_.can_rewind(sequence_, to));
    engine_.rewind_sequence(sequence_, to);
  }

  // Fills up to held_ tokens again; whether every token of that had a new sequence's logits.
  bool goes_on_as_fresh(bool as_prompt) {
    const auto kept = static_cast<size_t>(engine_.sequence_length(sequence_));
    std::vector<int32_t> ids(first_.begin(), first_.begin() + static_cast<std::ptrdiff_t>(kept));
    ids.insert(ids.end(), other_.begin() + static_cast<std::ptrdiff_t>(kept), other_.end());
    const Rows expected = rows_of(fresh_, ids);
    if (as_prompt || kept == 0) {
      return agree(numerics_, engine_.prefill(sequence_, std::span(ids).subspan(kept)), expected.row(held_ - 1));
    }
    bool same = true;
    for (size_t i = kept; i < ids.size(); ++i) {
      same = agree(numerics_, one_step(engine_, sequence_, ids[i]), expected.row(static_cast<int64_t>(i))) && same;
    }
    return same;
  }

  Numerics numerics_;
  LoadedModel model_;
  int64_t held_;
  Engine engine_, fresh_;
  std::vector<int32_t> first_, other_;
  int sequence_ = -1;
};

}  // namespace

TEST_CASE("chunks of a prompt, and decode after it, are one pass over the longer text, around every boundary") {
  for (const Numerics numerics : {Numerics::kReference, Numerics::kServe}) {
    for (const Kind& kind : kKinds) {
      const std::string folder = kind.folder;
      CAPTURE(folder);
      CAPTURE((numerics == Numerics::kReference));
      check_continuations(kind, numerics);
    }
  }
}

TEST_CASE("a sequence that was set back, by as many tokens as may be, goes on as a new one does") {
  for (const Numerics numerics : {Numerics::kReference, Numerics::kServe}) {
    for (const Kind& kind : kKinds) {
      const std::string folder = kind.folder;
      CAPTURE(folder);
      CAPTURE((numerics == Numerics::kReference));
      GoingBack going(kind, numerics);
      if (numerics == Numerics::kReference && going.marks()) continue;  // a state is marked in serve numerics
      going.run();
    }
  }
}

TEST_CASE("a sequence with a recurrent state goes back to its marks and to nothing, in any numerics") {
  for (const char* folder : {"golden/qwen3_5_moe_text.b", "golden/qwen4_exp.published"}) {
    for (const Numerics numerics : {Numerics::kReference, Numerics::kServe}) {
      const LoadedModel model = model_at(data_path(folder));
      Engine engine(model, config_of({folder}, model, numerics, 16), kPlenty);
      const int sequence = engine.open_sequence();
      engine.prefill(sequence, text(30, engine.geometry().vocab, 0));
      CHECK(engine.can_rewind(sequence, int64_t{30}));
      for (const int64_t length : {1, 15, 28, 29}) CHECK(!engine.can_rewind(sequence, length));
      CHECK(engine.can_rewind(sequence, int64_t{0}));
      if (numerics == Numerics::kServe) CHECK(engine.can_rewind(sequence, engine.mark_sequence(sequence)));
    }
  }
}
