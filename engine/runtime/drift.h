// Watching in service: does the engine decode as fast as its profile expects, and if not, which term moved?
//
// Pure arithmetic on what is handed in; no clock, engine or log. What is expected of a step is interpolated between the
// tuned points, linearly in context and batch (attention grows with the positions, the rest not at all). Below the
// smallest tuned context the attention part shrinks to nothing at context 0; without parts such steps are not judged.
// Above the largest context, below the smallest batch and above the largest one nothing is judged, and the watch says
// so.
//
// Rule. Steps are collected into windows of at least kWindowSteps steps and kWindowSeconds of decoding. The ratio of a
// window is achieved over expected rate; the band of a window is the interval of the expected rate. A window is outside
// when its ratio is beyond the band by more than kLeaveFactor, and inside when it is not beyond by more than
// kReturnFactor. After kWindowsInARow outside windows in a row, on one side, the rate has left the band; after as many
// inside ones it has come back. So one slow step, or one slow window, says nothing; noise at one of the edges fires at
// most once, because the way back is kLeaveFactor / kReturnFactor away; and no two lines are less than kWindowsInARow
// windows apart.
//
// The term that moved is the one with the largest share of the difference, in seconds of a step, if that is at least
// kTermShare. Waits are compared with the expected parts times the experts that were really fetched or computed, and
// all terms with what they were while the rate was inside the band, if it was: a model that is wrong about a term all
// along does not name it.
//
// Thread rule: one thread. add_step allocates, locks and logs nothing.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

namespace ft {

inline constexpr int64_t kWindowSteps = 32;
inline constexpr double kWindowSeconds = 1.0;  // of decode steps
inline constexpr int kWindowsInARow = 3;
inline constexpr double kLeaveFactor = 1.25;  // the tuner states a gap beyond it, too: kStatedGap in tuner/decide.h
inline constexpr double kReturnFactor = 1.15;
inline constexpr double kTermShare = 0.25;
inline constexpr double kReferenceWeight = 0.25;  // of a new window inside the band, against the ones before

// What is expected of one decode step; experts are distinct ones, over all layers.
enum class StepQuantity : uint8_t {
  kSeconds,
  kSecondsLow,   // by the upper end of the rate's interval
  kSecondsHigh,  // by the lower end
  kHits,
  kFetched,
  kCpu,
  kPartsSeconds,     // sum of all parts; 0: they are not known, and what follows is 0 too
  kMissSeconds,      // what misses cost: fetching and computing them on the CPU
  kLinkWaitSeconds,  // what EngineCounters::decode_link_wait_seconds should be
  kCpuWaitSeconds,   // what EngineCounters::cpu_wait_seconds should be
  kAttentionSeconds,
};
inline constexpr int kStepQuantities = 11;

struct StepValues {
  std::array<double, kStepQuantities> value{};

  double operator[](StepQuantity quantity) const { return value[static_cast<size_t>(quantity)]; }
  double& operator[](StepQuantity quantity) { return value[static_cast<size_t>(quantity)]; }
};

struct ExpectedStep {
  int64_t context = 0;
  int batch = 1;
  StepValues values;
};

// The tuned points as a grid.
class ExpectedSteps {
 public:
  ExpectedSteps() = default;
  // One entry per (context, batch), contexts outermost, both ascending; FT_CHECKed. Empty: nothing is expected.
  explicit ExpectedSteps(const std::vector<ExpectedStep>& points);

  bool empty() const { return batches_.empty(); }
  // False: outside of what was tuned.
  bool at(double context, int batch, StepValues& out) const;
  double low_context() const { return contexts_.front(); }
  double high_context() const { return contexts_.back(); }
  int low_batch() const { return batches_.front(); }
  int high_batch() const { return batches_.back(); }

 private:
  StepValues at_batch(double context, size_t batch) const;
  std::vector<double> contexts_;  // the first is 0 where parts are known
  std::vector<int> batches_;
  std::vector<StepValues> values_;  // [context][batch]
};

// Counters since the start, read when a window ends: differences are what the window did.
struct DriftReading {
  uint64_t hits = 0, fetched = 0, cpu = 0;
  std::optional<double> link_wait_seconds, attention_seconds;  // absent: this device does not measure it
  double cpu_wait_seconds = 0;
  double throttled_seconds = 0;  // of each thread, in decode steps
};

enum class DriftState : uint8_t { kNotJudged, kInside, kBelow, kAbove };  // kBelow: slower than expected
enum class DriftTerm : uint8_t {
  kNone,  // compute: none of the others explains it
  kHitRate,
  kFetch,
  kCpuWaits,
  kThrottling,
  kAttention,
  kContext,  // the longer half of the contexts alone
  kBatch,    // more sequences than the smallest tuned batch alone
};
std::string_view drift_state_name(DriftState state);  // "not judged", "inside", "below", "above"
std::string_view drift_term_name(DriftTerm term);     // "compute", "hit rate", "fetch", ...

// What the windows behind a change of state were like. Per step, seconds.
struct DriftEvent {
  DriftState state{};
  DriftTerm term = DriftTerm::kNone;  // of kBelow and kAbove
  double ratio = 0;                   // achieved over expected rate
  double low = 0, high = 0;           // the band of the ratio
  uint64_t steps = 0;
  double expected_seconds = 0, achieved_seconds = 0;
  double expected = 0, achieved = 0;  // of the term: hit rates, or seconds; 0 with kContext, kBatch and kNone
  double moved_seconds = 0;           // by the term
  double context = 0, batch = 0;      // mean of the steps
  bool measures_waits = true;         // the device tells waits for the link and attention from computing
};

struct DriftSummary {
  DriftState state = DriftState::kNotJudged;
  double ratio = 0;  // of the last window that was judged; 0: none was
  double low = 0, high = 0;
  uint64_t windows = 0;           // judged
  uint64_t steps_not_judged = 0;  // outside of what was tuned
  double outside_context = 0;     // of the last of them
  int outside_batch = 0;
  uint64_t times_left = 0;  // the band
  std::optional<DriftEvent> last;
};

class DriftWatch {
 public:
  explicit DriftWatch(ExpectedSteps expected);

  // After a decode step: `context` is the mean length of its sequences, their new token included.
  void add_step(int batch, double context, double seconds);
  bool window_is_full() const {
    return window_.steps + window_.outside >= kWindowSteps && window_.all_seconds >= kWindowSeconds;
  }
  // Ends the window. An event: the rate has left the band or come back, now.
  std::optional<DriftEvent> close_window(const DriftReading& reading);
  // Another strategy from now on; the window at hand is dropped and the state begins anew, counts go on.
  void expect(ExpectedSteps expected, const DriftReading& reading);

  const ExpectedSteps& expected() const { return expected_; }
  const DriftSummary& summary() const { return summary_; }

 private:
  // Steps of one kind: how long they took and should have.
  struct Side {
    uint64_t steps = 0;
    double seconds = 0, expected = 0;

    void add(const Side& other);
  };
  struct Window {
    uint64_t steps = 0, outside = 0;
    double seconds = 0;      // of the judged steps
    double all_seconds = 0;  // of all
    double context = 0, batch = 0;
    StepValues expected;  // sums over judged steps
    Side short_contexts, long_contexts, small_batches, large_batches;
    // Sums of what was counted, over all steps.
    double hits = 0, fetched = 0, cpu = 0;
    double link_wait_seconds = 0, cpu_wait_seconds = 0, attention_seconds = 0, throttled_seconds = 0;
    bool measures_waits = true;  // for the link, and attention

    void add(const Window& other);
    double ratio() const { return expected[StepQuantity::kSeconds] / seconds; }
    double low() const { return expected[StepQuantity::kSeconds] / expected[StepQuantity::kSecondsHigh]; }
    double high() const { return expected[StepQuantity::kSeconds] / expected[StepQuantity::kSecondsLow]; }
    double per_step(StepQuantity quantity) const { return expected[quantity] / static_cast<double>(steps); }
    double counted_per_step(double sum) const { return sum / static_cast<double>(steps + outside); }
  };
  // What the step and its terms differ by, as shares of the expected step.
  struct Offsets {
    double seconds = 0, misses = 0, fetch = 0, cpu_waits = 0, attention = 0;
  };

  void count(const DriftReading& reading);
  DriftState leads_to(const Window& window) const;
  void remember(const Window& window);
  static Offsets offsets_of(const Window& window);
  DriftEvent describe(DriftState state, const Window& window) const;
  void name_term(const Window& window, DriftEvent& event) const;

  ExpectedSteps expected_;
  Window window_, streak_;  // streak: the windows in a row that would change the state
  int in_a_row_ = 0;
  DriftState towards_ = DriftState::kNotJudged;  // where the streak leads, if there is one
  std::optional<Offsets> reference_;             // while inside the band
  DriftReading last_;
  DriftSummary summary_;
};

}  // namespace ft
