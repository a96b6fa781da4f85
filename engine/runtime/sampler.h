// From logits to a token: penalties, temperature, top-k, top-p, min-p, seeded choice. One Sampler per sequence.
//
// Order, as Hugging Face's processors: repetition penalty, presence and frequency penalties (OpenAI's definitions, over
// generated tokens), temperature, top-k, top-p, min-p, then an inverse-CDF draw. temperature 0 is greedy: arg max, ties
// to the lowest id. Ids without a token (embedding rows past the vocabulary) never win when `usable_vocab` is set.
// No allocation after construction.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace ft {

struct SamplingOptions {
  double temperature = 1.0;         // 0 .. 2; 0 is greedy
  int top_k = 0;                    // 0: off
  double top_p = 1.0;               // (0, 1]
  double min_p = 0.0;               // [0, 1)
  double repetition_penalty = 1.0;  // (0, 10]; over prompt and answer
  double presence_penalty = 0.0;    // -2 .. 2
  double frequency_penalty = 0.0;   // -2 .. 2
  uint64_t seed = 0;
};
// Throws Error(kRequest) naming the option, its value and what is allowed.
void check_sampling(const SamplingOptions& options);

class Sampler {
 public:
  Sampler(const SamplingOptions& options, int64_t vocab, int64_t usable_vocab);
  void add_prompt(std::span<const int32_t> ids);  // for the repetition penalty
  int32_t sample(std::span<const float> logits);  // (vocab); also counts the token as generated

 private:
  SamplingOptions options_;
  int64_t vocab_ = 0, usable_vocab_ = 0;
  uint64_t draws_ = 0;
  std::vector<float> scores_;
  std::vector<int32_t> order_;
  std::vector<int32_t> generated_count_;
  std::vector<uint8_t> seen_;
};

}  // namespace ft
