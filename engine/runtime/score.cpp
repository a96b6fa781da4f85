#include "engine/runtime/score.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "engine/model/safetensors.h"
#include "kernels/base/error.h"

namespace ft {
namespace {

struct Limits {
  int64_t vocab = 0;
  int64_t max_context = 0;
};

[[noreturn]] void refuse(std::string what, std::string value, std::string allowed, std::string path) {
  throw Error(ErrorKind::kUsage, {std::move(what), std::move(value), std::move(allowed), "", std::move(path)});
}

std::string upto(int64_t low, int64_t high) { return std::to_string(low) + " to " + std::to_string(high); }

int64_t integer_at(const Json& value, const std::string& path, int64_t low, int64_t high) {
  // An unsigned value past int64 reads as negative, so it is refused by the range like any other.
  const bool fits = value.is_number_integer() && value.get<int64_t>() >= low && value.get<int64_t>() <= high &&
                    (!value.is_number_unsigned() || value.get<uint64_t>() <= static_cast<uint64_t>(high));
  if (!fits) refuse("score input refused", value.dump(), "a whole number, " + upto(low, high), path);
  return value.get<int64_t>();
}

const Json& array_at(const Json& value, const std::string& path, size_t low, size_t high) {
  if (!value.is_array()) refuse("score input refused", value.type_name(), "an array", path);
  if (value.size() < low || value.size() > high) {
    refuse("score input has a wrong number of elements", std::to_string(value.size()),
           upto(static_cast<int64_t>(low), static_cast<int64_t>(high)), path);
  }
  return value;
}

std::vector<int32_t> ids_at(const Json& value, const std::string& path, const Limits& limits) {
  array_at(value, path, 1, static_cast<size_t>(limits.max_context));
  std::vector<int32_t> ids;
  ids.reserve(value.size());
  for (size_t i = 0; i < value.size(); ++i) {
    const std::string at = path + "[" + std::to_string(i) + "]";
    ids.push_back(static_cast<int32_t>(integer_at(value[i], at, 0, limits.vocab - 1)));
  }
  return ids;
}

std::vector<std::vector<int32_t>> sequences_at(const Json& value, const std::string& path, size_t most,
                                               const Limits& limits) {
  array_at(value, path, 0, most);
  std::vector<std::vector<int32_t>> sequences;
  for (size_t i = 0; i < value.size(); ++i) {
    sequences.push_back(ids_at(value[i], path + "[" + std::to_string(i) + "]", limits));
  }
  return sequences;
}

int32_t arg_max(std::span<const float> row) {
  return static_cast<int32_t>(std::max_element(row.begin(), row.end()) - row.begin());
}

// One sequence of the batch while it is scored.
struct Scored {
  int sequence = -1;
  std::span<const int32_t> prompt;
  size_t fed = 0;     // of the prompt
  int32_t next = -1;  // greedy id that follows
};

class Scorer {
 public:
  Scorer(Engine& engine, const std::function<bool()>& interrupted)
      : engine_(engine),
        interrupted_(interrupted),
        vocab_(static_cast<size_t>(engine.geometry().vocab)),
        budget_(static_cast<size_t>(max_logits_rows(engine.config()))) {}

  void warm(std::span<const int32_t> ids) {
    stop_if_interrupted();
    const Scored warming = open(ids);
    int32_t next = arg_max(engine_.prefill(warming.sequence, ids));
    for (int64_t i = 0; i < kWarmDecodeTokens && room(warming.sequence); ++i) {
      const TokenRun run = next_run(warming.sequence, next);
      next = arg_max(engine_.step({&run, 1}));
    }
    engine_.close_sequence(warming.sequence);
  }

  ScoreOutput run(const ScoreInput& input) {
    batch_.push_back(open(input.input_ids));
    for (const std::vector<int32_t>& ids : input.batch_with) batch_.push_back(open(ids));
    ScoreOutput output;
    output.logits.reserve(input.input_ids.size() * vocab_);
    while (feed_prompts(output)) {
    }
    std::vector<float> row(output.logits.end() - static_cast<std::ptrdiff_t>(vocab_), output.logits.end());
    for (int64_t i = 0; i < input.greedy; ++i) {
      batch_[0].next = arg_max(row);
      output.greedy_ids.push_back(batch_[0].next);
      output.greedy_logits.insert(output.greedy_logits.end(), row.begin(), row.end());
      if (i + 1 < input.greedy) decode(row);
    }
    for (const Scored& scored : batch_) engine_.close_sequence(scored.sequence);
    return output;
  }

 private:
  void stop_if_interrupted() const {
    if (interrupted_ && interrupted_())
      throw Error(ErrorKind::kInterrupted, {.what = "interrupted, nothing was written"});
  }

  Scored open(std::span<const int32_t> ids) {
    const int sequence = engine_.open_sequence();
    FT_CHECK(sequence >= 0);
    return {sequence, ids, 0, -1};
  }

  bool room(int sequence) const { return engine_.sequence_length(sequence) < engine_.config().max_context; }

  TokenRun next_run(int sequence, const int32_t& id) const {
    return {sequence, engine_.sequence_length(sequence), {&id, 1}, false, true};
  }

  // One prefill step: every unfinished prompt gets an equal share of the step. False when all are through.
  bool feed_prompts(ScoreOutput& output) {
    const auto unfinished = [](const Scored& scored) { return scored.fed < scored.prompt.size(); };
    const auto active = static_cast<size_t>(std::count_if(batch_.begin(), batch_.end(), unfinished));
    if (active == 0) return false;
    std::vector<TokenRun> runs;
    std::vector<Scored*> owners;
    for (Scored& scored : batch_) {
      if (!unfinished(scored)) continue;
      const size_t share = std::min(budget_ / active, scored.prompt.size() - scored.fed);
      const bool first = &scored == &batch_[0];
      runs.push_back({scored.sequence, engine_.sequence_length(scored.sequence),
                      scored.prompt.subspan(scored.fed, share), first, scored.fed + share == scored.prompt.size(),
                      true});
      scored.fed += share;
      owners.push_back(&scored);
    }
    stop_if_interrupted();
    std::span<const float> logits = engine_.step(runs);
    for (size_t i = 0; i < runs.size(); ++i) {
      const size_t rows = runs[i].logits_for_all ? runs[i].ids.size() : static_cast<size_t>(runs[i].last_logits);
      const std::span<const float> mine = logits.first(rows * vocab_);
      logits = logits.subspan(rows * vocab_);
      if (owners[i] == &batch_[0]) output.logits.insert(output.logits.end(), mine.begin(), mine.end());
      if (rows > 0) owners[i]->next = arg_max(mine.last(vocab_));
    }
    return true;
  }

  // One decode step of the whole batch; the input's logits go to `row`. Full sequences drop out.
  void decode(std::vector<float>& row) {
    std::vector<TokenRun> runs;
    std::vector<Scored*> owners;
    for (Scored& scored : batch_) {
      if (!room(scored.sequence)) continue;
      runs.push_back(next_run(scored.sequence, scored.next));
      owners.push_back(&scored);
    }
    FT_CHECK(!owners.empty() && owners[0] == &batch_[0]);
    stop_if_interrupted();
    const std::span<const float> logits = engine_.step(runs);
    row.assign(logits.begin(), logits.begin() + static_cast<std::ptrdiff_t>(vocab_));
    for (size_t i = 1; i < owners.size(); ++i) owners[i]->next = arg_max(logits.subspan(i * vocab_, vocab_));
  }

  Engine& engine_;
  const std::function<bool()>& interrupted_;
  size_t vocab_;
  size_t budget_;  // tokens of one step
  std::vector<Scored> batch_;
};

}  // namespace

ScoreInput parse_score_input(const Json& json, int64_t vocab, int64_t max_context, int max_batch) {
  if (!json.is_object()) refuse("score input refused", json.type_name(), "an object", "$");
  for (const auto& [key, value] : json.items()) {
    if (key == "input_ids" || key == "greedy" || key == "batch_with" || key == "warm_with") continue;
    refuse("unknown key in score input", key, "input_ids, greedy, batch_with, warm_with", "$." + key);
  }
  if (!json.contains("input_ids")) refuse("score input lacks a key", "", "an array of token ids", "$.input_ids");
  const Limits limits{vocab, max_context};
  ScoreInput input;
  input.input_ids = ids_at(json["input_ids"], "$.input_ids", limits);
  if (json.contains("greedy")) {
    // The last greedy id is not fed back, so one more of them than positions left can be chosen.
    const int64_t left = max_context - static_cast<int64_t>(input.input_ids.size()) + 1;
    input.greedy = integer_at(json["greedy"], "$.greedy", 0, std::min(left, kMaxScoreGreedy));
  }
  if (json.contains("batch_with")) {
    input.batch_with = sequences_at(json["batch_with"], "$.batch_with", static_cast<size_t>(max_batch - 1), limits);
  }
  if (json.contains("warm_with")) {
    input.warm_with = sequences_at(json["warm_with"], "$.warm_with", kMaxWarmSequences, limits);
  }
  return input;
}

ScoreOutput score(Engine& engine, const ScoreInput& input, const std::function<bool()>& interrupted) {
  Scorer scorer(engine, interrupted);
  for (const std::vector<int32_t>& ids : input.warm_with) scorer.warm(ids);
  return scorer.run(input);
}

void write_score(const std::string& path, const ScoreOutput& output, int64_t vocab) {
  std::vector<TensorToWrite> tensors;
  const auto rows = [vocab](size_t floats) { return static_cast<int64_t>(floats) / vocab; };
  tensors.push_back({"logits", {rows(output.logits.size()), vocab}, output.logits, {}});
  if (!output.greedy_ids.empty()) {
    tensors.push_back({"greedy_ids", {static_cast<int64_t>(output.greedy_ids.size())}, {}, output.greedy_ids});
    tensors.push_back({"greedy_logits", {rows(output.greedy_logits.size()), vocab}, output.greedy_logits, {}});
  }
  write_safetensors(path, tensors);
}

}  // namespace ft
