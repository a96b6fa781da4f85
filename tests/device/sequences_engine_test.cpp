// What an engine on a CUDA device keeps of sequences: caches of windows that have gone round, recurrent states. Checked
// against: the host device, bit for bit, where tokens go one by one; itself with other chunks, which make rings of
// other sizes; the engine that a sequence was copied from; a sequence that never went back. Needs FT_TEST_DATA.
#include <utility>

#include "engine/runtime/cuda/device_weights.h"
#include "tests/device/engine_lists.h"

namespace ft::device_test {

using namespace ft::test;

namespace {

constexpr int64_t kLong = 300;  // rings of the cases' windows have 128 rows with short chunks
constexpr int kShortChunk = 16, kLongChunk = 160;

EngineConfig config_of(const LoadedModel& model, int chunk, int max_batch = 1) {
  EngineConfig config = on_device(model, Strategy::kHybrid, model.family->geometry().total_experts() / 2, max_batch);
  if (max_batch > 1) config.slots = model.family->geometry().total_experts();
  config.prefill_chunk = chunk;
  return config;
}

std::vector<float> next_logits(Engine& engine, int sequence, int32_t id) {
  TokenRun run;
  run.sequence = sequence;
  run.position = engine.sequence_length(sequence);
  run.ids = {&id, 1};
  const std::span<const float> logits = engine.step({&run, 1});
  return {logits.begin(), logits.end()};
}

void check_steps(Context& context, const std::string& path) {
  const LoadedModel model = model_at(path);
  const int64_t vocab = model.family->geometry().vocab;
  guarded(context, "long sequences by steps, as the host", path, [&] {
    EngineConfig on_host = config_for(model, Strategy::kResident, 0, kEngineThreads);
    on_host.prefill_chunk = kShortChunk;
    Engine host(model, on_host, kPlenty);
    const Continuation expected = run_by_steps(host, some_ids(kLong, vocab, 1), 6);
    Engine engine(model, config_of(model, kShortChunk), kDevicePlenty);
    std::string text = compare(run_by_steps(engine, some_ids(kLong, vocab, 1), 6), expected, vocab);
    // Another sequence in the same place begins anew.
    return text.empty() ? compare(run_by_steps(engine, some_ids(kLong, vocab, 1), 6), expected, vocab) : text;
  });
}

void check_chunks(Context& context, const std::string& path) {
  const LoadedModel model = model_at(path);
  const int64_t vocab = model.family->geometry().vocab;
  Continuation expected;
  for (const int chunk : {kLongChunk, kShortChunk, 7, 256}) {
    guarded(context, "long prompts in other chunks", path + " chunk " + std::to_string(chunk), [&]() -> std::string {
      Engine engine(model, config_of(model, chunk), kDevicePlenty);
      const Continuation got = run_greedy(engine, some_ids(kLong, vocab, 1), 6);
      if (got.ids.empty()) return "no ids";
      if (expected.ids.empty()) expected = got;
      return compare(got, expected, vocab);
    });
  }
}

void check_copies(Context& context, const std::string& path) {
  LoadedModel model = model_at(path);
  model.on_device = upload_weights(*model.weights);
  const int64_t vocab = model.family->geometry().vocab;
  for (const bool up : {true, false}) {
    const int from_chunk = up ? kShortChunk : kLongChunk, to_chunk = up ? kLongChunk : kShortChunk;
    guarded(context, "copied sequences", path + " chunk " + std::to_string(from_chunk), [&]() -> std::string {
      Engine first(model, config_of(model, from_chunk, 2), kDevicePlenty);
      Engine second(model, config_of(model, to_chunk, 3), kDevicePlenty);
      for (const int64_t length : {int64_t{1}, int64_t{40}, kLong}) {
        const int from = first.open_sequence();
        second.open_sequence();
        const int to = second.open_sequence();
        first.prefill(from, some_ids(length, vocab, 5));
        second.copy_sequence(to, first, from);
        for (const int32_t id : {3, 5, 8, 13, 21, 34}) {
          const std::string text = first_difference(next_logits(second, to, id), next_logits(first, from, id), vocab);
          if (!text.empty()) return "length " + std::to_string(length) + ": " + text;
        }
        first.close_sequence(from);
        second.close_sequence(to);
        second.close_sequence(0);
      }
      return "";
    });
  }
}

// A sequence that was set back to a mark goes on as one that was only led there.
void check_going_back(Context& context, const std::string& path) {
  const LoadedModel model = model_at(path);
  const int64_t vocab = model.family->geometry().vocab;
  guarded(context, "sequences that go back", path, [&]() -> std::string {
    Engine engine(model, config_of(model, kShortChunk, 2), kDevicePlenty);
    for (const int64_t length : {int64_t{1}, int64_t{40}, int64_t{127}, kLong}) {
      const int back = engine.open_sequence(), plain = engine.open_sequence();
      for (const int sequence : {back, plain}) engine.prefill(sequence, some_ids(length, vocab, 5));
      const SequenceMark mark = engine.mark_sequence(back);
      for (const int64_t steps : {int64_t{1}, int64_t{7}, kRewindPositions}) {
        for (const int32_t id : some_ids(steps, vocab, static_cast<uint64_t>(steps))) next_logits(engine, back, id);
        if (!engine.can_rewind(back, mark)) return "cannot go back by " + std::to_string(steps);
        engine.rewind_sequence(back, mark);
      }
      for (const int32_t id : {3, 5, 8, 13, 21, 34}) {
        const std::string text = first_difference(next_logits(engine, back, id), next_logits(engine, plain, id), vocab);
        if (!text.empty()) return "length " + std::to_string(length) + ": " + text;
      }
      engine.close_sequence(back);
      engine.close_sequence(plain);
    }
    return "";
  });
}

// Sequences of different lengths, one of them past its ring, that decode together.
void check_together(Context& context, const std::string& path) {
  const LoadedModel model = model_at(path);
  const int64_t vocab = model.family->geometry().vocab;
  guarded(context, "long sequences beside others", path, [&]() -> std::string {
    Engine engine(model, config_of(model, kShortChunk, 4), kDevicePlenty);
    const int64_t lengths[] = {kLong, 1, 127, 30};
    std::vector<Continuation> alone;
    for (size_t i = 0; i < std::size(lengths); ++i) {
      alone.push_back(run_greedy(engine, some_ids(lengths[i], vocab, i + 1), 8));
    }
    std::vector<TokenRun> runs;
    for (size_t i = 0; i < std::size(lengths); ++i) {
      TokenRun run;
      run.sequence = engine.open_sequence();
      engine.prefill(run.sequence, some_ids(lengths[i], vocab, i + 1));
      runs.push_back(run);
    }
    for (size_t step = 0; step + 1 < 8; ++step) {
      for (size_t i = 0; i < runs.size(); ++i) {
        runs[i].position = engine.sequence_length(runs[i].sequence);
        runs[i].ids = std::span(alone[i].ids).subspan(step, 1);
      }
      const std::span<const float> rows = engine.step(runs);
      for (size_t i = 0; i < runs.size(); ++i) {
        const auto width = static_cast<size_t>(vocab);
        const std::string text =
            first_difference(rows.subspan(i * width, width),
                             std::span(alone[i].decode_logits).subspan((step + 1) * width, width), vocab);
        if (!text.empty()) return "sequence " + std::to_string(i) + " step " + std::to_string(step) + ": " + text;
      }
    }
    return "";
  });
}

}  // namespace

namespace {

void check_cases(Context& context, std::initializer_list<const char*> names) {
  for (const char* name : names) {
    const std::string path = data_path("golden/" + std::string(name));
    if (!runs_on_device(path)) continue;
    check_steps(context, path);
    check_chunks(context, path);
    check_copies(context, path);
    check_going_back(context, path);
    check_together(context, path);
  }
}

}  // namespace

void test_sequences(Context& context) {
  check_cases(context, {"gpt_oss.small", "gemma4.older", "gemma4.plain", "qwen3_5_moe_text.b"});
}

void test_compressed_sequences(Context& context) {
  check_cases(context, {"deepseek_v4.published", "qwen4_exp.published"});
}

}  // namespace ft::device_test
