// A host thread that answers what plan_layer hands over: for each pair a word made from its expert and its token's row.
#pragma once

#include <atomic>
#include <thread>

#include "tests/device/moe_rig.h"

namespace ft::device_test {

class Answerer {
 public:
  Answerer(PlanRig& rig, cuda::PinnedBuffer& answers);  // answers: (max_tokens * top_k) words
  ~Answerer();
  Answerer(const Answerer&) = delete;
  Answerer& operator=(const Answerer&) = delete;

 private:
  void answer();
  PlanRig& rig_;
  cuda::PinnedBuffer& answers_;
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

}  // namespace ft::device_test
