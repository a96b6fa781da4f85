// From logits to a token: penalties, temperature, top-k, top-p, min-p, seeded choice. One Sampler per sequence.
//
// In this order, which is that of Hugging Face's processors:
//   repetition penalty r, once for each id in prompt or answer: s = s < 0 ? s * r : s / r
//   presence p and frequency f (OpenAI), over the answer only, n = times generated: s = s - (n > 0 ? p : 0) - f * n
//   temperature: s / temperature; 0 is greedy: the largest s, ties to the lowest id, and nothing below applies
//   top_k: keeps s >= the k-th largest s, so ids that tie with it all stay
//   top_p: largest first (ties: lower id first), keeps an id while the probability of those before it is below top_p
//   min_p: keeps an id whose probability is at least min_p times the largest
//   draw: inverse of the cumulative sum of what is kept, in order of id, at the n-th number of Random(seed) for the
//   n-th
//     token that was drawn
// Weights are exponentials in double made of additions and multiplications only: a seed gives the same tokens on every
// machine for the same logits.
// Ids without a token (embedding rows past the vocabulary) never win when `usable_vocab` is set. NaN counts as -inf. A
// +inf wins, the lowest id first. When nothing is above -inf the answer is id 0.
// No allocation after construction. One thread at a time.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/base/largest_logit.h"

namespace ft {

inline constexpr double kMaxTemperature = 2.0;
inline constexpr double kMaxRepetitionPenalty = 10.0;
inline constexpr double kMaxPresencePenalty = 2.0;  // and frequency penalty; either sign

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
  // REQUIRES checked options, vocab > 0, usable_vocab <= vocab; usable_vocab 0: all of vocab.
  Sampler(const SamplingOptions& options, int64_t vocab, int64_t usable_vocab);
  void add_prompt(std::span<const int32_t> ids);  // for the repetition penalty; ids outside the vocabulary are ignored
  // (vocab); also counts the token as generated. `largest`: what a device has found in them, or null; the answer is the
  // same, a greedy one without 0.1 ms of looking.
  int32_t sample(std::span<const float> logits, const LargestLogit* largest = nullptr);

 private:
  bool penalized() const;
  bool may_take(const LargestLogit* largest) const;
  int32_t choose_from(std::span<const float> logits);
  void note(int32_t id);
  void copy_scores(std::span<const float> logits);
  void penalize();
  int32_t choose(float largest);
  float top_k_threshold();
  void weigh(float largest);
  void keep_top_p(float largest);
  int32_t draw();

  SamplingOptions options_;
  int64_t vocab_ = 0, usable_vocab_ = 0;
  uint64_t draws_ = 0;
  std::vector<float> scores_;             // (usable_vocab)
  std::vector<double> weights_;           // (usable_vocab): exp((score - largest) / temperature)
  std::vector<float> heap_;               // the top_k largest scores seen so far, smallest in front
  std::vector<int32_t> kept_;             // ids that may still be drawn, in increasing order
  std::vector<int32_t> edge_;             // ids around the end of the nucleus
  std::vector<double> mass_;              // (buckets of top_p): sum of weights
  std::vector<int32_t> noted_;            // distinct ids of prompt and answer
  std::vector<int32_t> generated_count_;  // (usable_vocab)
  std::vector<uint8_t> seen_;             // (usable_vocab): in noted_
};

}  // namespace ft
