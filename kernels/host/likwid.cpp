// Where likwid stands on this machine (kernels/host/topology.h), and its counters of memory traffic. The one file that
// includes likwid.h.
//
// likwid prints, exits or dies on a signal where a virtual machine lacks model-specific registers, so it is asked in a
// child process: for its state in one that writes one byte per stage passed, for traffic in one that counts on request.
#include "kernels/host/dram_counter.h"
#include "kernels/host/host_config.h"
#include "kernels/host/topology.h"

#if FT_HAVE_LIKWID
#include <fcntl.h>
#include <likwid.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <string_view>
#include <vector>
#endif

namespace ft {

#if FT_HAVE_LIKWID
namespace {

constexpr unsigned kChildSeconds = 5;  // topology and one counter take well under a second
constexpr const char* kMsrPath = "/dev/cpu/0/msr";

enum Stage : uint8_t { kTopology = 1, kAccess, kEvents, kCounted };

void pass(int fd, Stage stage) {
  if (::write(fd, &stage, 1) != 1) ::_exit(1);
}

bool count_instructions(int fd) {
  HPMmode(ACCESSMODE_DIRECT);
  numa_init();
  int cpu = 0;
  if (perfmon_init(1, &cpu) < 0) return false;
  pass(fd, kAccess);
  char events[] = "INSTR_RETIRED_ANY:FIXC0";
  const int group = perfmon_addEventSet(events);
  if (group < 0 || perfmon_setupCounters(group) < 0) return false;
  pass(fd, kEvents);
  if (perfmon_startCounters() < 0 || perfmon_stopCounters() < 0) return false;
  return perfmon_getResult(group, 0, 0) > 0;  // a hypervisor without a virtual PMU reads as 0
}

void keep_quiet() {
  ::alarm(kChildSeconds);
  const struct rlimit no_core {};
  ::setrlimit(RLIMIT_CORE, &no_core);
  const int null = ::open("/dev/null", O_RDWR);
  for (const int standard : {0, 1, 2}) ::dup2(null, standard);
}

[[noreturn]] void run_child(int fd, bool with_counters) {
  keep_quiet();
  if (topology_init() == 0 && get_cpuTopology()->numHWThreads > 0) {
    pass(fd, kTopology);
    if (with_counters && count_instructions(fd)) pass(fd, kCounted);
  }
  ::_exit(0);
}

// The last stage that the child passed, 0 when none.
uint8_t probe(bool with_counters) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return 0;
  const pid_t child = ::fork();
  if (child == 0) run_child(ends[1], with_counters);
  ::close(ends[1]);
  uint8_t last = 0;
  if (child > 0) {
    uint8_t stage = 0;
    while (true) {
      const ssize_t got = ::read(ends[0], &stage, 1);
      if (got < 0 && errno == EINTR) continue;
      if (got != 1) break;
      last = stage;
    }
    while (::waitpid(child, nullptr, 0) < 0 && errno == EINTR) {
    }
  }
  ::close(ends[0]);
  return last;
}

std::string why_no_counters(uint8_t stage) {
  switch (stage) {
    case kTopology:
      return "likwid cannot initialise hardware counters on this CPU or virtual machine";
    case kAccess:
      return "likwid does not know the counters of this CPU";
    case kEvents:
      return "the hardware counters read 0, as in a virtual machine without a virtual PMU";
    default:
      return "likwid cannot read this machine's topology";
  }
}

// One CPU of each socket: memory controllers belong to sockets.
std::vector<int> socket_cpus() {
  std::vector<int> cpus;
  std::vector<uint32_t> seen;
  const CpuTopology_t topology = get_cpuTopology();
  for (uint32_t i = 0; i < topology->numHWThreads; ++i) {
    const HWThread& thread = topology->threadPool[i];
    bool known = false;
    for (const uint32_t socket : seen) known = known || socket == thread.packageId;
    if (known) continue;
    seen.push_back(thread.packageId);
    cpus.push_back(static_cast<int>(thread.apicId));
  }
  return cpus;
}

// Of likwid's group MEM: bytes read, or all where its CPU's counters do not tell.
std::optional<double> metric_bytes(int group, size_t sockets) {
  constexpr std::string_view kRead = "Memory read data volume [GBytes]", kAll = "Memory data volume [GBytes]";
  int found = -1;
  for (int i = 0; i < perfmon_getNumberOfMetrics(group); ++i) {
    const std::string_view name = perfmon_getMetricName(group, i);
    if (name == kRead || (name == kAll && found < 0)) found = i;
  }
  if (found < 0) return std::nullopt;
  double bytes = 0;
  for (size_t i = 0; i < sockets; ++i) bytes += perfmon_getLastMetric(group, found, static_cast<int>(i)) * 1e9;
  return bytes;
}

constexpr char kStart = 's', kStop = 'e', kReady = 'r';

// Answers kStart with kReady and kStop with a double, until the other end is closed or something fails.
[[noreturn]] void run_dram_child(int fd) {
  keep_quiet();
  if (topology_init() != 0) ::_exit(1);
  HPMmode(ACCESSMODE_DIRECT);
  numa_init();
  affinity_init();
  const std::vector<int> cpus = socket_cpus();
  if (perfmon_init(static_cast<int>(cpus.size()), cpus.data()) < 0) ::_exit(1);
  const int group = perfmon_addEventSet("MEM");
  if (group < 0 || perfmon_setupCounters(group) < 0) ::_exit(1);
  char command = kReady;
  if (::write(fd, &command, 1) != 1) ::_exit(1);
  while (true) {
    ::alarm(0);  // the parent takes its time
    if (::read(fd, &command, 1) != 1) ::_exit(0);
    ::alarm(kChildSeconds);
    if (command == kStart) {
      if (perfmon_startCounters() < 0 || ::write(fd, &kReady, 1) != 1) ::_exit(1);
      continue;
    }
    if (perfmon_stopCounters() < 0) ::_exit(1);
    const std::optional<double> bytes = metric_bytes(group, cpus.size());
    if (!bytes || ::write(fd, &*bytes, sizeof *bytes) != sizeof *bytes) ::_exit(1);
  }
}

class LikwidDramCounter final : public DramCounter {
 public:
  LikwidDramCounter(int fd, pid_t child) : fd_(fd), child_(child) {}
  ~LikwidDramCounter() override {
    ::close(fd_);
    while (::waitpid(child_, nullptr, 0) < 0 && errno == EINTR) {
    }
  }
  LikwidDramCounter(const LikwidDramCounter&) = delete;
  LikwidDramCounter& operator=(const LikwidDramCounter&) = delete;

  bool ready() { return answer<char>() == kReady; }
  bool start() override { return ask(kStart) && ready(); }
  std::optional<double> stop() override { return ask(kStop) ? answer<double>() : std::nullopt; }

 private:
  bool ask(char command) { return ::send(fd_, &command, 1, MSG_NOSIGNAL) == 1; }
  template <class Value>
  std::optional<Value> answer() {
    std::array<char, sizeof(Value)> bytes{};
    size_t got = 0;
    while (got < bytes.size()) {
      const ssize_t more = ::read(fd_, bytes.data() + got, bytes.size() - got);
      if (more < 0 && errno == EINTR) continue;
      if (more <= 0) return std::nullopt;
      got += static_cast<size_t>(more);
    }
    Value value{};
    std::memcpy(&value, bytes.data(), sizeof value);
    return value;
  }

  int fd_;
  pid_t child_;
};

}  // namespace

std::unique_ptr<DramCounter> open_dram_counter(std::string& why_not) {
  const LikwidStatus status = likwid_status();
  why_not = status.reason;
  if (!status.counters) return nullptr;
  why_not = "likwid cannot count memory traffic on this CPU (group MEM)";
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) return nullptr;
  const pid_t child = ::fork();
  if (child == 0) {
    ::close(ends[0]);
    run_dram_child(ends[1]);
  }
  ::close(ends[1]);
  if (child < 0) {
    ::close(ends[0]);
    return nullptr;
  }
  auto counter = std::make_unique<LikwidDramCounter>(ends[0], child);
  if (!counter->ready()) return nullptr;
  why_not.clear();
  return counter;
}

LikwidStatus likwid_status() {
  const int msr = ::open(kMsrPath, O_RDWR | O_CLOEXEC);
  const int msr_errno = msr >= 0 ? 0 : errno;
  if (msr >= 0) ::close(msr);
  const uint8_t stage = probe(msr >= 0);
  LikwidStatus status{.built = true, .topology = stage >= kTopology, .counters = stage == kCounted, .reason = {}};
  if (status.counters) return status;
  if (status.topology && msr < 0) {
    status.reason = std::string("no hardware counters: cannot open ") + kMsrPath + " (" + std::strerror(msr_errno) +
                    "), it takes the msr kernel module and root";
  } else {
    status.reason = why_no_counters(stage);
  }
  return status;
}

#else

LikwidStatus likwid_status() {
  return {.built = false, .topology = false, .counters = false, .reason = "this build has no likwid support"};
}

std::unique_ptr<DramCounter> open_dram_counter(std::string& why_not) {
  why_not = likwid_status().reason;
  return nullptr;
}

#endif

}  // namespace ft
