// Checked against: a virtual model whose next token is a hash of the sequence's own history, so what a request must get
// is computed alone, without any scheduler.
#include "engine/scheduler/scheduler.h"

#include <doctest/doctest.h>

#include <map>
#include <stdexcept>

#include "engine/engine_config.h"
#include "kernels/base/error.h"
#include "kernels/base/random.h"

namespace {

constexpr int64_t kVocab = 50;
constexpr int32_t kEnd = 7;

int32_t next_token(const std::vector<int32_t>& history) {
  uint64_t h = 1;
  for (const int32_t id : history) h = ft::mix64(h ^ static_cast<uint64_t>(id));
  return static_cast<int32_t>(h % kVocab);
}

// Keeps each sequence's history and checks the contract of every run.
class VirtualModel : public ft::StepExecutor {
 public:
  VirtualModel(int batch, int64_t context, int chunk) : batch_(batch), context_(context), chunk_(chunk) {}
  int max_batch() const override { return batch_; }
  int64_t max_context() const override { return context_; }
  int prefill_chunk() const override { return chunk_; }
  int64_t vocab() const override { return kVocab; }
  int open_sequence() override {
    for (int s = 0; s < batch_; ++s) {
      if (!history_.contains(s)) {
        history_[s] = {};
        return s;
      }
    }
    return -1;
  }
  void close_sequence(int sequence) override { REQUIRE(history_.erase(sequence) == 1); }
  std::span<const float> step(std::span<const ft::TokenRun> runs) override {
    ++steps;
    if (steps == fail_at) throw std::runtime_error("link broke");
    widest = std::max(widest, runs.size());
    logits_.clear();
    for (const ft::TokenRun& run : runs) {
      auto& history = history_.at(run.sequence);
      REQUIRE(run.position == static_cast<int64_t>(history.size()));
      REQUIRE(!run.ids.empty());
      REQUIRE(run.ids.size() <= static_cast<size_t>(chunk_));
      history.insert(history.end(), run.ids.begin(), run.ids.end());
      REQUIRE(static_cast<int64_t>(history.size()) <= context_);
      if (!run.last_logits) continue;
      std::vector<float> row(kVocab, 0.0f);
      row[static_cast<size_t>(next_token(history))] = 9.0f;
      logits_.insert(logits_.end(), row.begin(), row.end());
    }
    return logits_;
  }
  size_t open() const { return history_.size(); }

  int steps = 0;
  int fail_at = -1;
  size_t widest = 0;

 private:
  int batch_;
  int64_t context_;
  int chunk_;
  std::map<int, std::vector<int32_t>> history_;
  std::vector<float> logits_;
};

struct Answer {
  std::vector<int32_t> ids;
  int finished = 0;
  ft::FinishReason reason{};
  std::string message;
};

Answer expected(std::vector<int32_t> history, int64_t max_tokens) {
  Answer answer;
  for (int64_t i = 0; i < max_tokens; ++i) {
    const int32_t id = next_token(history);
    if (id == kEnd) {
      answer.reason = ft::FinishReason::kStop;
      return answer;
    }
    answer.ids.push_back(id);
    history.push_back(id);
  }
  answer.reason = ft::FinishReason::kLength;
  return answer;
}

ft::GenerationRequest request_for(std::vector<int32_t> prompt, int64_t max_tokens, Answer& answer) {
  ft::GenerationRequest request;
  request.prompt = std::move(prompt);
  request.max_tokens = max_tokens;
  request.stop_ids = {kEnd};
  request.sampling.temperature = 0;
  request.on_token = [&answer](int32_t id) {
    answer.ids.push_back(id);
    return true;
  };
  request.on_finish = [&answer](ft::FinishReason reason, std::string message) {
    ++answer.finished;
    answer.reason = reason;
    answer.message = std::move(message);
  };
  return request;
}

std::vector<int32_t> random_prompt(ft::Random& random, int64_t longest) {
  std::vector<int32_t> prompt(1 + random.below(static_cast<uint64_t>(longest)));
  for (int32_t& id : prompt) id = static_cast<int32_t>(random.below(kVocab));
  return prompt;
}

}  // namespace

TEST_CASE("every request gets what it would get alone, whatever runs beside it") {
  ft::Random random(5);
  for (const int batch : {1, 2, 8}) {
    VirtualModel model(batch, 128, 16);
    ft::Scheduler scheduler(model);
    std::vector<std::vector<int32_t>> prompts;
    std::vector<int64_t> limits;
    std::vector<Answer> answers(40);
    for (size_t i = 0; i < answers.size(); ++i) {
      prompts.push_back(random_prompt(random, 60));
      limits.push_back(1 + static_cast<int64_t>(random.below(60)));
      scheduler.submit(request_for(prompts[i], limits[i], answers[i]));
      if (i % 3 == 0) scheduler.run_once();
    }
    while (scheduler.run_once()) {
    }
    CHECK(model.open() == 0);
    CHECK(model.widest == static_cast<size_t>(batch));
    for (size_t i = 0; i < answers.size(); ++i) {
      const Answer alone = expected(prompts[i], limits[i]);
      CHECK(answers[i].ids == alone.ids);
      CHECK(answers[i].reason == alone.reason);
      CHECK(answers[i].finished == 1);
    }
    CHECK(scheduler.stats().requests_finished == answers.size());
  }
}

TEST_CASE("a long prompt does not keep running answers waiting: prefill and decode take turns") {
  VirtualModel model(2, 1000, 4);
  ft::Scheduler scheduler(model);
  Answer quick, slow;
  scheduler.submit(request_for({1, 2}, 40, quick));
  scheduler.run_once();
  ft::Random random(1);
  std::vector<int32_t> prompt(400);
  for (int32_t& id : prompt) id = static_cast<int32_t>(random.below(kVocab));
  scheduler.submit(request_for(prompt, 5, slow));
  const Answer alone = expected({1, 2}, 40);
  // 100 chunks of prefill; the quick one ends after about two steps a token.
  for (size_t i = 0; i < 2 * (alone.ids.size() + 2); ++i) scheduler.run_once();
  CHECK(quick.finished == 1);
  CHECK(slow.finished == 0);
}

TEST_CASE("what can never fit is refused at once, at the bound it is taken") {
  VirtualModel model(1, 10, 4);
  ft::Scheduler scheduler(model);
  Answer answer;
  CHECK_NOTHROW(scheduler.submit(request_for({1, 2, 3, 4}, 6, answer)));
  CHECK_THROWS_AS(scheduler.submit(request_for({1, 2, 3, 4}, 7, answer)), ft::Error);
  CHECK_THROWS_AS(scheduler.submit(request_for({}, 1, answer)), ft::Error);
  CHECK_THROWS_AS(scheduler.submit(request_for({1}, 0, answer)), ft::Error);
  CHECK_THROWS_AS(scheduler.submit(request_for({kVocab}, 1, answer)), ft::Error);
  CHECK_THROWS_AS(scheduler.submit(request_for({-1}, 1, answer)), ft::Error);
  CHECK_NOTHROW(scheduler.submit(request_for({kVocab - 1}, 1, answer)));
  auto stops = request_for({1}, 1, answer);
  stops.stop_ids.assign(ft::kMaxStopIds + 1, 3);
  CHECK_THROWS_AS(scheduler.submit(std::move(stops)), ft::Error);
}

TEST_CASE("the queue has a bound") {
  VirtualModel model(1, 10, 4);
  ft::Scheduler scheduler(model);
  Answer answer;
  for (size_t i = 0; i < ft::kMaxWaitingRequests; ++i) scheduler.submit(request_for({1}, 1, answer));
  try {
    scheduler.submit(request_for({1}, 1, answer));
    FAIL("one more request was taken");
  } catch (const ft::Error& error) {
    CHECK(error.kind() == ft::ErrorKind::kCapacity);
  }
  scheduler.run_once();  // one is running now: there is place again
  CHECK_NOTHROW(scheduler.submit(request_for({1}, 1, answer)));
}

TEST_CASE("cancelling ends a waiting and a running request once, and gives the place away") {
  VirtualModel model(1, 1000, 4);
  ft::Scheduler scheduler(model);
  Answer first, second, third;
  const uint64_t running = scheduler.submit(request_for({1, 2, 3}, 900, first));
  const uint64_t waiting = scheduler.submit(request_for({4}, 900, second));
  scheduler.submit(request_for({9, 9}, 3, third));
  for (int i = 0; i < 3; ++i) scheduler.run_once();
  scheduler.cancel(waiting);
  scheduler.cancel(running);
  scheduler.cancel(12345);  // unknown: nothing happens
  while (scheduler.run_once()) {
  }
  CHECK(first.finished == 1);
  CHECK(first.reason == ft::FinishReason::kCancelled);
  CHECK(second.finished == 1);
  CHECK(second.ids.empty());
  CHECK(third.ids == expected({9, 9}, 3).ids);
  CHECK(scheduler.stats().requests_cancelled == 2);
}

TEST_CASE("a failing step ends its requests with the reason and the next request works") {
  VirtualModel model(2, 100, 4);
  model.fail_at = 4;
  ft::Scheduler scheduler(model);
  Answer first, second, third;
  scheduler.submit(request_for({1, 2}, 50, first));
  scheduler.submit(request_for({3, 4}, 50, second));
  while (scheduler.run_once()) {
  }
  CHECK((first.reason == ft::FinishReason::kFailed || second.reason == ft::FinishReason::kFailed));
  CHECK((first.message == "link broke" || second.message == "link broke"));
  scheduler.submit(request_for({5}, 4, third));
  while (scheduler.run_once()) {
  }
  CHECK(third.ids == expected({5}, 4).ids);
  CHECK(model.open() == 0);
}

TEST_CASE("stop() ends everything and refuses what comes later") {
  VirtualModel model(1, 100, 4);
  ft::Scheduler scheduler(model);
  Answer first, second;
  scheduler.submit(request_for({1}, 50, first));
  scheduler.submit(request_for({2}, 50, second));
  scheduler.run_once();
  scheduler.stop();
  CHECK(!scheduler.stopped());
  CHECK(!scheduler.run_once());
  CHECK(scheduler.stopped());
  CHECK(first.reason == ft::FinishReason::kCancelled);
  CHECK(second.finished == 1);
  CHECK_THROWS_AS(scheduler.submit(request_for({1}, 1, first)), ft::Error);
}

TEST_CASE("a consumer that says no stops the request") {
  VirtualModel model(1, 100, 4);
  ft::Scheduler scheduler(model);
  Answer answer;
  auto request = request_for({1, 2, 3, 5}, 50, answer);
  request.stop_ids.clear();
  request.on_token = [&answer](int32_t id) {
    answer.ids.push_back(id);
    return answer.ids.size() < 3;
  };
  scheduler.submit(std::move(request));
  while (scheduler.run_once()) {
  }
  CHECK(answer.ids.size() == 3);
  CHECK(answer.reason == ft::FinishReason::kStop);
}
