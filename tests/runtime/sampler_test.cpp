// Checked against: a brute force in the form of Hugging Face's logits processors (ascending cumulative sums, full
// sorts, std::exp), itself checked on golden probabilities made with those formulas in numpy; chi-square tests; and
// cases worked out by hand.
#include "engine/runtime/sampler.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <new>
#include <numeric>
#include <string>

#include "kernels/base/error.h"
#include "kernels/base/random.h"

namespace {
std::atomic<int64_t>& allocations() {
  static std::atomic<int64_t> count{0};
  return count;
}
}  // namespace

// Not inlined: g++ 12 would see free() of what operator new gave and warn.
[[gnu::noinline]] void* operator new(size_t size) {
  ++allocations();
  if (void* p = std::malloc(size)) return p;
  throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void* p) noexcept { std::free(p); }
[[gnu::noinline]] void operator delete(void* p, size_t) noexcept { std::free(p); }

namespace {

using namespace ft;

constexpr float kInf = std::numeric_limits<float>::infinity();

struct History {
  std::vector<int32_t> prompt, generated;
};

// Probability of every id after all processors, in double.
std::vector<double> probabilities(const std::vector<float>& logits, const SamplingOptions& o, const History& history) {
  const size_t n = logits.size();
  std::vector<double> s(logits.begin(), logits.end());
  std::vector<int> count(n), seen(n);
  for (const int32_t id : history.prompt) seen[id] = 1;
  for (const int32_t id : history.generated) seen[id] = 1, ++count[id];
  for (size_t i = 0; i < n; ++i) {
    if (seen[i]) s[i] = s[i] < 0 ? s[i] * o.repetition_penalty : s[i] / o.repetition_penalty;
    if (count[i] > 0) s[i] -= o.presence_penalty + count[i] * o.frequency_penalty;
    s[i] /= o.temperature;
  }
  const auto softmax = [&] {
    const double largest = *std::max_element(s.begin(), s.end());
    std::vector<double> p(n);
    for (size_t i = 0; i < n; ++i) p[i] = std::exp(s[i] - largest);
    const double sum = std::accumulate(p.begin(), p.end(), 0.0);
    for (double& x : p) x /= sum;
    return p;
  };
  if (o.top_k > 0 && static_cast<size_t>(o.top_k) < n) {
    std::vector<double> sorted = s;
    std::sort(sorted.begin(), sorted.end(), std::greater<>());
    for (double& x : s) x = x < sorted[o.top_k - 1] ? -kInf : x;
  }
  if (o.top_p < 1) {
    const std::vector<double> p = softmax();
    std::vector<size_t> order(n);
    std::iota(order.begin(), order.end(), 0);
    std::sort(order.begin(), order.end(), [&](size_t a, size_t b) { return s[a] < s[b] || (s[a] == s[b] && a > b); });
    double cumulative = 0;
    for (size_t i = 0; i + 1 < n; ++i) {
      cumulative += p[order[i]];
      if (cumulative <= 1 - o.top_p) s[order[i]] = -kInf;
    }
  }
  if (o.min_p > 0) {
    const std::vector<double> p = softmax();
    const double bound = o.min_p * *std::max_element(p.begin(), p.end());
    for (size_t i = 0; i < n; ++i) s[i] = p[i] < bound ? -kInf : s[i];
  }
  return softmax();
}

// A sampler that has answered history.generated: +inf forces a token.
Sampler sampler_after(const SamplingOptions& options, int64_t vocab, const History& history) {
  Sampler sampler(options, vocab, 0);
  sampler.add_prompt(history.prompt);
  for (const int32_t id : history.generated) {
    std::vector<float> forced(static_cast<size_t>(vocab), 0.0f);
    forced[id] = kInf;
    REQUIRE(sampler.sample(forced) == id);
  }
  return sampler;
}

// Pearson's statistic of one draw for each of `draws` seeds. Its expectation is the degrees of freedom f, its variance
// 2 f; six standard deviations above is far beyond the 1e-6 quantile for the f used here.
void check_distribution(const std::vector<float>& logits, SamplingOptions options, const History& history) {
  const std::vector<double> p = probabilities(logits, options, history);
  constexpr int kDraws = 20000;
  std::vector<int> count(logits.size());
  for (int i = 0; i < kDraws; ++i) {
    options.seed = 1000 + i;
    ++count[sampler_after(options, static_cast<int64_t>(logits.size()), history).sample(logits)];
  }
  double statistic = 0, freedom = -1;
  for (size_t i = 0; i < p.size(); ++i) {
    if (p[i] == 0) {
      REQUIRE(count[i] == 0);
      continue;
    }
    const double expected = p[i] * kDraws;
    statistic += (count[i] - expected) * (count[i] - expected) / expected;
    freedom += 1;
  }
  CHECK(statistic < freedom + 6 * std::sqrt(2 * freedom) + 1e-9);
}

const std::vector<float> kLogits = {2.0f, -1.5f, 0.25f, 3.125f, 1.0f, 2.75f, -0.5f, 0.0f, 1.875f, 2.5f};

struct Golden {
  SamplingOptions options;
  History history;
  std::vector<double> expected;
};

std::vector<Golden> golden_cases() {
  SamplingOptions a, b;
  a.temperature = 0.7, a.top_k = 7, a.top_p = 0.9, a.repetition_penalty = 1.3;
  a.presence_penalty = 0.5, a.frequency_penalty = 0.25;
  b.temperature = 1.5, b.top_p = 0.97, b.min_p = 0.2, b.repetition_penalty = 1.1;
  b.presence_penalty = -0.5, b.frequency_penalty = 0.1;
  return {{a, {{3, 1, 8}, {5, 5, 0}}, {0, 0, 0, 0.39075566, 0, 0.062017904, 0, 0, 0.098934309, 0.448292128}},
          {b, {{3}, {9}}, {0.135137794, 0, 0, 0.236725447, 0.069382057, 0.222804556, 0, 0, 0.124332773, 0.211617374}}};
}

TEST_CASE("the processors give the golden probabilities, and draws follow them") {
  for (const Golden& golden : golden_cases()) {
    const std::vector<double> p = probabilities(kLogits, golden.options, golden.history);
    for (size_t i = 0; i < p.size(); ++i) CHECK(std::fabs(p[i] - golden.expected[i]) < 2e-9);
    check_distribution(kLogits, golden.options, golden.history);
  }
  check_distribution(kLogits, {}, {});
}

// The lowest id where the cumulative sum passes u.
int32_t brute_force_draw(const std::vector<double>& p, double u) {
  double sum = 0;
  for (size_t id = 0; id < p.size(); ++id) {
    sum += p[id];
    if (sum > u) return static_cast<int32_t>(id);
  }
  return static_cast<int32_t>(p.size()) - 1;
}

TEST_CASE("every draw equals the brute force's for the same random number, over random options") {
  const uint64_t seed = 99;
  INFO("seed ", seed);
  Random random(seed);
  for (int trial = 0; trial < 3000; ++trial) {
    SamplingOptions o;
    o.temperature = 0.1 + random.uniform() * 1.9;
    const auto vocab = static_cast<int64_t>(2 + random.below(400));
    o.top_k = random.below(2) == 0 ? 0 : static_cast<int>(random.below(static_cast<uint64_t>(vocab) + 3));
    o.top_p = random.below(2) == 0 ? 1.0 : 0.05 + 0.95 * random.uniform();
    o.min_p = random.below(2) == 0 ? 0.0 : random.uniform() * 0.5;
    if (random.below(2) == 0) o.repetition_penalty = 0.5 + random.uniform();
    if (random.below(2) == 0) o.presence_penalty = 4 * random.uniform() - 2;
    if (random.below(2) == 0) o.frequency_penalty = 4 * random.uniform() - 2;
    o.seed = random.next();
    History history;
    for (uint64_t i = random.below(6); i > 0; --i) history.prompt.push_back(static_cast<int32_t>(random.below(vocab)));
    Sampler sampler(o, vocab, 0);
    sampler.add_prompt(history.prompt);
    for (int token = 0; token < 4; ++token) {
      std::vector<float> logits(static_cast<size_t>(vocab));
      for (float& x : logits) x = static_cast<float>(3 * random.normal());
      const double u = static_cast<double>(mix64(mix64(o.seed) + token) >> 11) * 0x1p-53;
      const int32_t expected = brute_force_draw(probabilities(logits, o, history), u);
      REQUIRE(sampler.sample(logits) == expected);
      history.generated.push_back(expected);
    }
  }
}

std::vector<int> ids_drawn(const std::vector<float>& logits, SamplingOptions options, int draws = 2000) {
  std::vector<int> ids;
  Sampler sampler(options, static_cast<int64_t>(logits.size()), 0);
  for (int i = 0; i < draws; ++i) ids.push_back(sampler.sample(logits));
  std::sort(ids.begin(), ids.end());
  ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
  return ids;
}

TEST_CASE("top_k, top_p and min_p at their edges") {
  const std::vector<float> logits = {0.0f, 2.0f, 1.0f, 2.0f, 1.0f};
  SamplingOptions o;
  CHECK(ids_drawn(logits, o) == std::vector<int>{0, 1, 2, 3, 4});
  o.top_k = 1;
  CHECK(ids_drawn(logits, o) == std::vector<int>{1, 3});  // a tie with the k-th stays
  o.top_k = 3;
  CHECK(ids_drawn(logits, o) == std::vector<int>{1, 2, 3, 4});
  for (const int all : {5, 6, std::numeric_limits<int>::max()}) {
    o.top_k = all;
    CHECK(ids_drawn(logits, o) == std::vector<int>{0, 1, 2, 3, 4});
  }
  // Probabilities 1/2, 1/4, 1/8, 1/8, exact to the last bit but for exp: an id stays while those before it are below p.
  const auto ln2 = static_cast<float>(std::log(2.0));
  const std::vector<float> halves = {0.0f, -ln2, -2 * ln2, -2 * ln2};
  SamplingOptions p;
  p.top_p = 1e-300;
  CHECK(ids_drawn(halves, p) == std::vector<int>{0});
  p.top_p = 0.499;
  CHECK(ids_drawn(halves, p) == std::vector<int>{0});
  p.top_p = 0.501;
  CHECK(ids_drawn(halves, p) == std::vector<int>{0, 1});
  p.top_p = 0.751;
  CHECK(ids_drawn(halves, p) == std::vector<int>{0, 1, 2});  // of two equals the lower id comes first
  p.top_p = 0.876;
  CHECK(ids_drawn(halves, p) == std::vector<int>{0, 1, 2, 3});
  p.top_p = 1.0;
  p.min_p = 0.251;
  CHECK(ids_drawn(halves, p) == std::vector<int>{0, 1});
  p.min_p = 0.249;
  CHECK(ids_drawn(halves, p) == std::vector<int>{0, 1, 2, 3});
  p.min_p = std::nextafter(1.0, 0.0);
  CHECK(ids_drawn(halves, p) == std::vector<int>{0});
}

TEST_CASE("a largest logit that a device has found is a greedy choice, where it is one") {
  const std::vector<float> logits = {0, 2, 1, 2, 3};
  SamplingOptions o;
  o.temperature = 0;
  const LargestLogit last{3, 4}, found{2, 1}, none{0, -1};
  CHECK(Sampler(o, 5, 0).sample(logits, &last) == 4);
  CHECK(Sampler(o, 5, 4).sample(logits, &last) == 1);                        // id 4 has no token
  CHECK(Sampler(o, 5, 0).sample(std::vector<float>(5, 1.0f), &none) == 0);   // it found nothing: look
  CHECK(Sampler(o, 5, 0).sample(std::vector<float>(5, 9.0f), &found) == 1);  // believed, not looked for again
  o.repetition_penalty = 2.0;                                                // scores are no longer the logits
  Sampler penalized(o, 5, 0);
  CHECK(penalized.sample(logits, &last) == 4);
  CHECK(penalized.sample(logits, &last) == 1);  // 3 / 2 < 2
  o = {};
  o.top_k = 1;
  CHECK(Sampler(o, 5, 0).sample(logits, &found) == 4);  // not greedy
}

TEST_CASE("greedy: arg max, lowest id of equals, penalties respected") {
  SamplingOptions o;
  o.temperature = 0;
  Sampler plain(o, 5, 0);
  CHECK(plain.sample(std::vector<float>{0, 2, 1, 2, 1}) == 1);
  CHECK(plain.sample(std::vector<float>{-3, -2, -1, -2, -1}) == 2);
  o.repetition_penalty = 2.0;  // 3 / 2 < 2, and -1 * 2 < -1.5
  Sampler repetition(o, 3, 0);
  repetition.add_prompt(std::vector<int32_t>{0});
  CHECK(repetition.sample(std::vector<float>{3, 2, 0}) == 1);
  Sampler negative(o, 3, 0);
  negative.add_prompt(std::vector<int32_t>{0, 0});  // once, however often it stands there
  CHECK(negative.sample(std::vector<float>{-1, -1.5f, -9}) == 1);
  Sampler once(o, 3, 0);
  once.add_prompt(std::vector<int32_t>{0, 0});
  CHECK(once.sample(std::vector<float>{-1, -2.5f, -9}) == 0);
  o.repetition_penalty = 1.0, o.presence_penalty = 0.75;
  Sampler presence(o, 3, 0);
  presence.add_prompt(std::vector<int32_t>{0});  // the prompt does not count
  CHECK(presence.sample(std::vector<float>{1, 0.5f, 0}) == 0);
  CHECK(presence.sample(std::vector<float>{1, 0.5f, 0}) == 1);
  o.presence_penalty = 0, o.frequency_penalty = 0.3;
  Sampler frequency(o, 2, 0);
  const std::vector<float> pair = {1, 0.5f};
  CHECK(frequency.sample(pair) == 0);  // 1
  CHECK(frequency.sample(pair) == 0);  // 0.7
  CHECK(frequency.sample(pair) == 1);  // 0.4
}

TEST_CASE("greedy over every length up to 70: the largest is found wherever it stands") {
  SamplingOptions o;
  o.temperature = 0;
  for (int64_t vocab = 1; vocab <= 70; ++vocab) {
    Sampler sampler(o, vocab, 0);
    for (int64_t best = 0; best < vocab; ++best) {
      std::vector<float> logits(static_cast<size_t>(vocab), -5.0f);
      logits[best] = -4.0f;
      if (best > 0) logits[best - 1] = NAN;
      REQUIRE(sampler.sample(logits) == best);
    }
  }
}

TEST_CASE("NaN, infinities and unusable ids never break the choice") {
  for (const double temperature : {0.0, 1.0}) {
    for (const bool filtered : {false, true}) {
      SamplingOptions o;
      o.temperature = temperature;
      if (filtered) o.top_k = 2, o.top_p = 0.9, o.min_p = 0.1, o.repetition_penalty = 1.2;
      const auto choose = [&](std::vector<float> logits, int64_t usable = 0) {
        return Sampler(o, static_cast<int64_t>(logits.size()), usable).sample(logits);
      };
      CHECK(choose({NAN, NAN, NAN}) == 0);
      CHECK(choose({-kInf, -kInf}) == 0);
      CHECK(choose({NAN, -kInf, 1.0f, NAN}) == 2);
      CHECK(choose({1.0f, kInf, 2.0f, kInf}) == 1);
      CHECK(choose({NAN, kInf}) == 1);
      CHECK(choose({5.0f}) == 0);
      CHECK(choose({1.0f, -3e38f, 3e38f}) == 2);
      CHECK(choose({-kInf, 1.0f, 9.0f, kInf}, 2) == 1);  // 2 and 3 are past the usable ids
    }
  }
  SamplingOptions cold;
  cold.top_p = 0.5;
  for (const double temperature : {1e-300, 5e-324}) {
    cold.temperature = temperature;
    CHECK(Sampler(cold, 3, 0).sample(std::vector<float>{1.0f, 1.0001f, 0.0f}) == 1);
  }
  SamplingOptions heavy;
  heavy.repetition_penalty = 1e-30;  // overflows to +inf
  Sampler overflow(heavy, 2, 0);
  overflow.add_prompt(std::vector<int32_t>{1, -1, 2, 7});  // ids outside the vocabulary are ignored
  CHECK(overflow.sample(std::vector<float>{5.0f, 1e10f}) == 1);
}

TEST_CASE("a seed gives the same tokens again, another seed others") {
  std::vector<float> logits(1000);
  Random random(5);
  for (float& x : logits) x = static_cast<float>(random.normal());
  const auto tokens = [&](uint64_t seed) {
    SamplingOptions o;
    o.seed = seed, o.top_p = 0.95;
    Sampler sampler(o, 1000, 0);
    std::vector<int32_t> ids;
    for (int i = 0; i < 50; ++i) ids.push_back(sampler.sample(logits));
    return ids;
  };
  CHECK(tokens(1) == tokens(1));
  CHECK(tokens(1) != tokens(2));
}

TEST_CASE("no allocation after construction, at the vocabulary of Qwen3 and any options") {
  constexpr int64_t kVocab = 151936;
  std::vector<float> logits(kVocab);
  Random random(3);
  for (float& x : logits) x = static_cast<float>(3 * random.normal());
  SamplingOptions plain, qwen, wide, greedy;
  qwen.top_k = 20, qwen.top_p = 0.95, qwen.temperature = 0.6, qwen.presence_penalty = 1.5;
  wide.top_p = 0.999, wide.min_p = 1e-9, wide.top_k = 100000, wide.repetition_penalty = 1.1;
  greedy.temperature = 0;
  for (const SamplingOptions& o : {plain, qwen, wide, greedy}) {
    Sampler sampler(o, kVocab, 151669);
    const int64_t before = allocations();
    sampler.add_prompt(std::vector<int32_t>());
    for (int i = 0; i < 20; ++i) {
      if (sampler.sample(logits) >= 151669) FAIL("an unusable id");
    }
    CHECK(allocations() == before);
  }
}

void check_refused(const SamplingOptions& options, const std::string& name) {
  try {
    check_sampling(options);
    FAIL("accepted: ", name);
  } catch (const Error& error) {
    CHECK(error.kind() == ErrorKind::kRequest);
    CHECK(error.parts().path == name);
    CHECK_FALSE(error.parts().value.empty());
    CHECK_FALSE(error.parts().allowed.empty());
  }
}

TEST_CASE("options are accepted at their bounds and refused one past, by name") {
  struct Bound {
    const char* name;
    double SamplingOptions::*field;
    double low, high;     // accepted
    double below, above;  // refused
  };
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const Bound bounds[] = {
      {"temperature", &SamplingOptions::temperature, 0, 2, -1e-300, std::nextafter(2.0, 3.0)},
      {"top_p", &SamplingOptions::top_p, 1e-300, 1, 0, std::nextafter(1.0, 2.0)},
      {"min_p", &SamplingOptions::min_p, 0, std::nextafter(1.0, 0.0), -1e-300, 1},
      {"repetition_penalty", &SamplingOptions::repetition_penalty, 1e-300, 10, 0, std::nextafter(10.0, 11.0)},
      {"presence_penalty", &SamplingOptions::presence_penalty, -2, 2, std::nextafter(-2.0, -3.0),
       std::nextafter(2.0, 3.0)},
      {"frequency_penalty", &SamplingOptions::frequency_penalty, -2, 2, std::nextafter(-2.0, -3.0),
       std::nextafter(2.0, 3.0)},
  };
  check_sampling({});
  for (const Bound& bound : bounds) {
    SamplingOptions o;
    o.*bound.field = bound.low;
    check_sampling(o);
    o.*bound.field = bound.high;
    check_sampling(o);
    for (const double bad : {bound.below, bound.above, nan, -HUGE_VAL, HUGE_VAL}) {
      o.*bound.field = bad;
      check_refused(o, bound.name);
    }
  }
  SamplingOptions o;
  o.top_k = std::numeric_limits<int>::max();
  check_sampling(o);
  o.top_k = -1;
  check_refused(o, "top_k");
}

}  // namespace
