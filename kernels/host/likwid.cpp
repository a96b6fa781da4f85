// Where likwid stands on this machine (kernels/host/topology.h). The one file that includes likwid.h.
//
// likwid prints, exits or dies on a signal where a virtual machine lacks model-specific registers, so it is asked in a
// child process that writes one byte per stage passed.
#include "kernels/host/host_config.h"
#include "kernels/host/topology.h"

#if FT_HAVE_LIKWID
#include <fcntl.h>
#include <likwid.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
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

[[noreturn]] void run_child(int fd, bool with_counters) {
  ::alarm(kChildSeconds);
  const struct rlimit no_core {};
  ::setrlimit(RLIMIT_CORE, &no_core);
  const int null = ::open("/dev/null", O_RDWR);
  for (const int standard : {0, 1, 2}) ::dup2(null, standard);
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

}  // namespace

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

#endif

}  // namespace ft
