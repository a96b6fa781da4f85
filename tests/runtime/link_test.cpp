// Checked against: the bytes that were to be copied, the order of enqueueing, and the process's CPU time while idle.
#include "engine/runtime/link.h"

#include <doctest/doctest.h>
#include <time.h>

#include <cstring>
#include <vector>

#include "kernels/base/clock.h"

using namespace ft;

namespace {

std::vector<std::byte> pattern(size_t bytes, int seed) {
  std::vector<std::byte> data(bytes);
  for (size_t i = 0; i < bytes; ++i) data[i] = static_cast<std::byte>((i * 31 + static_cast<size_t>(seed) * 7) & 255u);
  return data;
}

double process_cpu_seconds() {
  timespec time{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

}  // namespace

TEST_CASE("every copy arrives whole, tickets are done in order, and counters add up") {
  constexpr int kCopies = 500;
  constexpr size_t kBytes = 10'000;
  Link link(4);  // far fewer than copies: enqueue must wait for room
  std::vector<std::vector<std::byte>> sources, targets(kCopies, std::vector<std::byte>(kBytes));
  for (int i = 0; i < kCopies; ++i) sources.push_back(pattern(kBytes, i));
  CHECK(link.done(Link::kNoTicket));
  for (int i = 0; i < kCopies; ++i) {
    const auto index = static_cast<size_t>(i);
    const Link::Ticket ticket = link.enqueue(sources[index].data(), targets[index].data(), kBytes);
    CHECK(ticket == static_cast<Link::Ticket>(i + 1));
    if (i % 3 == 0) {
      link.wait(ticket);
      CHECK(targets[index] == sources[index]);
      for (Link::Ticket before = 1; before <= ticket; ++before) CHECK(link.done(before));
    }
  }
  link.drain();
  CHECK(targets == sources);
  CHECK(link.counters().copies == kCopies);
  CHECK(link.counters().bytes == kCopies * kBytes);
  link.reset_counters();
  CHECK(link.counters().copies == 0);
  CHECK(link.counters().bytes == 0);
}

TEST_CASE("a link that is destroyed finishes what was enqueued") {
  const std::vector<std::byte> source = pattern(1 << 20, 3);
  std::vector<std::byte> target(source.size() * 4);
  {
    Link link(8);
    for (size_t i = 0; i < 4; ++i) {
      link.enqueue(source.data(), target.data() + i * source.size(), static_cast<int64_t>(source.size()));
    }
  }
  for (size_t i = 0; i < 4; ++i) {
    CHECK(std::memcmp(target.data() + i * source.size(), source.data(), source.size()) == 0);
  }
}

TEST_CASE("an idle link uses no core, and wakes up") {
  Link link(2);
  const std::vector<std::byte> source = pattern(64, 1);
  std::vector<std::byte> target(64);
  link.wait(link.enqueue(source.data(), target.data(), 64));
  const double start = process_cpu_seconds();
  const timespec pause{0, 300'000'000};
  nanosleep(&pause, nullptr);
  CHECK(process_cpu_seconds() - start < 0.03);  // a spinning thread would use all 0.3 s
  std::vector<std::byte> again(64);
  link.wait(link.enqueue(source.data(), again.data(), 64));
  CHECK(again == source);
}
