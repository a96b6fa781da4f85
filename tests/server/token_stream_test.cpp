// Checked against: what the writer wrote, in order, through real threads.
#include "engine/server/token_stream.h"

#include <doctest/doctest.h>

#include <thread>

TEST_CASE("a reader sees every id in order and the finish last, however the threads interleave") {
  for (int round = 0; round < 200; ++round) {
    constexpr int kIds = 300;
    ft::TokenStream stream(kIds);
    std::thread writer([&stream, round] {
      for (int i = 0; i < kIds; ++i) {
        stream.push(i * 7);
        if ((i + round) % 50 == 0) std::this_thread::yield();
      }
      stream.finish(ft::FinishReason::kLength, "done");
    });
    uint32_t seen = 0;
    bool ordered = true;
    while (true) {
      const uint32_t count = stream.wait(seen);
      for (; seen < count; ++seen) ordered = ordered && stream.id(seen) == static_cast<int32_t>(seen) * 7;
      if (stream.finished() && stream.wait(seen) == seen) break;
    }
    writer.join();
    CHECK(ordered);
    CHECK(seen == kIds);
    CHECK(stream.reason() == ft::FinishReason::kLength);
    CHECK(stream.message() == "done");
  }
}

TEST_CASE("a finish without ids wakes the reader") {
  ft::TokenStream stream(1);
  std::thread writer([&stream] { stream.finish(ft::FinishReason::kFailed, "broke"); });
  CHECK(stream.wait(0) == 0);
  CHECK(stream.finished());
  writer.join();
}
