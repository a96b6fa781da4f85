#include "tests/bench/bound.h"

#include <algorithm>

#include "kernels/base/error.h"

namespace ft::bench {

Curve::Curve(std::vector<double> counts, std::vector<double> seconds)
    : counts_(std::move(counts)), seconds_(std::move(seconds)) {
  FT_CHECK(counts_.size() == seconds_.size());
  double before = 0;
  for (const double count : counts_) {
    FT_CHECK(count > before);
    before = count;
  }
}

double Curve::at(double count) const {
  FT_CHECK(!counts_.empty() && count >= 0);
  const size_t last = counts_.size() - 1;
  size_t i = 0;  // the stretch that ends at point i
  while (i < last && counts_[i] < count) ++i;
  const double x0 = i == 0 ? 0 : counts_[i - 1], y0 = i == 0 ? 0 : seconds_[i - 1];
  return y0 + (seconds_[i] - y0) * (count - x0) / (counts_[i] - x0);
}

double Curve::best_rate() const {
  double best = 0;
  for (size_t i = 0; i < counts_.size(); ++i) best = std::max(best, counts_[i] / seconds_[i]);
  return best;
}

Split best_split(const Curves& curves, int misses) {
  FT_CHECK(misses >= 0);
  if (misses == 0) return {};
  Split best{misses, curves.fetch.at(misses)};
  for (int fetched = misses - 1; fetched >= 0 && !curves.cpu.empty(); --fetched) {
    const double link = fetched == 0 ? 0 : curves.fetch.at(fetched);
    const double seconds = std::max(link, curves.cpu.at(misses - fetched));
    if (seconds < best.seconds) best = {fetched, seconds};
  }
  return best;
}

SplitTable split_table(const Curves& curves, int max_misses) {
  SplitTable table;
  for (int m = 0; m <= max_misses; ++m) table.push_back(best_split(curves, m).fetched);
  return table;
}

double miss_seconds(const Curves& curves, std::span<const uint64_t> layers_with, uint64_t steps, bool fetch_all) {
  FT_CHECK(steps > 0);
  double sum = 0;
  for (size_t m = 1; m < layers_with.size(); ++m) {
    if (layers_with[m] == 0) continue;
    const int misses = static_cast<int>(m);
    const double layer = fetch_all ? curves.fetch.at(misses) : best_split(curves, misses).seconds;
    sum += layer * static_cast<double>(layers_with[m]);
  }
  return sum / static_cast<double>(steps);
}

double misses_per_step(std::span<const uint64_t> layers_with, uint64_t steps) {
  FT_CHECK(steps > 0);
  double sum = 0;
  for (size_t m = 1; m < layers_with.size(); ++m) sum += static_cast<double>(m) * static_cast<double>(layers_with[m]);
  return sum / static_cast<double>(steps);
}

double counted_resident_seconds(double measured, double bytes, double device_read_rate) {
  if (device_read_rate <= 0) return measured;  // not measured
  return std::min(measured, kResidentCap * bytes / device_read_rate);
}

double smooth_bound_seconds(double resident, double missed_bytes, double fetch_rate, double cpu_rate) {
  FT_CHECK(fetch_rate > 0 && cpu_rate >= 0);
  return resident + missed_bytes / (fetch_rate + cpu_rate);
}

}  // namespace ft::bench
