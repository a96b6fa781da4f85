#include "tuner/fit.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <string>

#include "kernels/base/error.h"
#include "kernels/base/random.h"
#include "tuner/nnls.h"

namespace ft {
namespace {

constexpr int kMaxBranchRounds = 20;  // of choosing binding branches and weights again; branches settle in two or three
constexpr double kSettled = 1e-4;     // in weights, which are at most 1
// Beyond it one of both waits for the other: the same for every split.
constexpr double kMaxContention = 8;
constexpr double kContentionGrid[] = {0, 0.25, 0.5, 1, 2, 4, kMaxContention};
constexpr double kShareGrid[] = {0, 0.25, 0.5, 0.75, 1};
constexpr double kFirstStep = 0.25, kLastStep = 1e-8;
// At each step; two or three are usual. Along the floor of a bent valley, as cells of a machine that others keep busy
// make one, the search went on for minutes with ever smaller gains.
constexpr int kMaxMoves = 50;

int at(CostTerm term) { return static_cast<int>(term); }

using Row = std::array<double, kLinearTermCount>;

// Where a pure cell's time is linear in the parameters. On the host a cell that only fetches waits for its last copy or
// for its first (cost_model.h): which of them binds depends on the parameters, so the fit chooses and looks again.
enum class Branch : uint8_t { kLastCopy, kFirstCopy };

Row linear_row(const LayerCounts& n, Device device, Branch branch) {
  Row row{};
  row[at(CostTerm::kBase)] = 1;
  row[at(CostTerm::kBasePerToken)] = n.tokens;
  row[at(CostTerm::kSlotFixed)] = n.hits + n.fetched > 0 ? 1 : 0;
  row[at(CostTerm::kPerPromotion)] = device == Device::kHost ? n.promoted : 0;
  row[at(CostTerm::kCpuFixed)] = n.cpu > 0 ? 1 : 0;
  row[at(CostTerm::kCpuPerExpert)] = n.cpu;
  row[at(CostTerm::kCpuPerPick)] = n.cpu_picks - n.cpu;
  row[at(CostTerm::kSlotPerExpert)] = n.hits;
  row[at(CostTerm::kSlotPerPick)] = n.hit_picks - n.hits;
  if (n.fetched == 0) return row;
  const bool last_copy = device == Device::kHost && branch == Branch::kLastCopy;  // all others are computed by then
  const bool first_copy = device == Device::kHost && branch == Branch::kFirstCopy;
  const double computed = last_copy ? 1 : n.fetched;
  row[at(CostTerm::kLinkFixed)] = 1;
  row[at(CostTerm::kLinkPerExpert)] = first_copy ? 1 : n.fetched;
  if (first_copy && n.fetched > 1) row[at(CostTerm::kSlotFixed)] = 2;
  row[at(CostTerm::kSlotPerExpert)] += computed;
  row[at(CostTerm::kSlotPerPick)] += computed * (n.fetched_picks - n.fetched) / n.fetched;
  return row;
}

Branch binding_branch(const CostParameters& cost, Device device, const LayerCounts& n) {
  if (device != Device::kHost || n.fetched == 0) return Branch::kLastCopy;
  const double one =
      cost[CostTerm::kSlotPerExpert] + cost[CostTerm::kSlotPerPick] * (n.fetched_picks - n.fetched) / n.fetched;
  return one > cost[CostTerm::kLinkPerExpert] ? Branch::kFirstCopy : Branch::kLastCopy;
}

double relative_error(const CostParameters& cost, Device device, const SweepCell& cell) {
  return std::abs(layer_seconds(cost, device, cell.counts) - cell.seconds) / cell.seconds;
}

// Huber's loss (Robust Estimation of a Location Parameter, 1964) of relative errors: a cell that other work on the
// machine spoilt pulls with a constant force, not with one that grows.
constexpr double kSmallError = 0.05;  // about the spread of a cell's median on a machine that is shared

double loss(const CostParameters& cost, Device device, const std::vector<SweepCell>& cells) {
  double sum = 0;
  for (const SweepCell& cell : cells) {
    const double error = relative_error(cost, device, cell);
    sum += error <= kSmallError ? error * error : kSmallError * (2 * error - kSmallError);
  }
  return sum;
}
double weight_of(double error) { return error <= kSmallError ? 1 : kSmallError / error; }

// Terms that are forced to zero.
using Dropped = std::array<bool, kCostTermCount>;

Dropped all_fixed() {
  Dropped dropped{};
  for (const CostTermInfo& term : cost_terms()) dropped[static_cast<size_t>(term.term)] = term.fixed;
  return dropped;
}

// Stage one: all linear terms at once, on cells where at most one arm works, by least squares with weights that come
// from the errors of the round before.
CostParameters fit_pure(Device device, int threads, const std::vector<SweepCell>& cells, const Dropped& dropped) {
  std::vector<Branch> branches(cells.size(), Branch::kLastCopy);
  std::vector<double> weights(cells.size(), 1);
  CostParameters best;
  double best_loss = -1;
  for (int round = 0; round < kMaxBranchRounds; ++round) {
    std::vector<double> a, b;
    for (size_t i = 0; i < cells.size(); ++i) {
      const Row row = linear_row(cells[i].counts, device, branches[i]);
      const double root = std::sqrt(weights[i]);
      for (int term = 0; term < kLinearTermCount; ++term) {
        a.push_back(dropped[static_cast<size_t>(term)] ? 0 : root * row[static_cast<size_t>(term)] / cells[i].seconds);
      }
      b.push_back(root);
    }
    const std::vector<double> x = nnls(a, b, kLinearTermCount);
    CostParameters cost;
    cost.threads = threads;
    std::copy(x.begin(), x.end(), cost.value);
    const double here = loss(cost, device, cells);
    if (best_loss < 0 || here < best_loss) {
      best = cost;
      best_loss = here;
    }
    double moved = 0;  // in weights, a changed branch as one
    for (size_t i = 0; i < cells.size(); ++i) {
      const Branch branch = binding_branch(cost, device, cells[i].counts);
      const double weight = weight_of(relative_error(cost, device, cells[i]));
      moved = std::max({moved, std::abs(weight - weights[i]), branch == branches[i] ? 0.0 : 1.0});
      branches[i] = branch;
      weights[i] = weight;
    }
    if (moved < kSettled) break;
  }
  return best;
}

// Stage two: on mixed cells with copies, both contentions, and how much of the link's fixed cost alone is the sleep of
// threads that have nothing to compute. Three numbers of which the time is no linear function: a grid, then a search
// from its best point along all axes and diagonals, with steps that halve.
using Mixed = std::array<double, 3>;  // contention of compute, of the link; share of a_f that is a_w

CostParameters with_mixed(CostParameters cost, const Mixed& x) {
  const double link_fixed = cost[CostTerm::kLinkFixed];
  cost[CostTerm::kContentionCompute] = x[0];
  cost[CostTerm::kContentionLink] = x[1];
  cost[CostTerm::kLinkIdle] = x[2] * link_fixed;
  cost[CostTerm::kLinkFixed] = link_fixed - cost[CostTerm::kLinkIdle];
  return cost;
}

void fit_mixed(Device device, const std::vector<SweepCell>& cells, const Dropped& dropped, CostParameters& cost) {
  if (cells.empty()) return;
  const bool sleeps = device == Device::kHost && cost[CostTerm::kLinkFixed] > 0;
  const auto most = [&](CostTerm term, double bound) { return dropped[static_cast<size_t>(at(term))] ? 0.0 : bound; };
  const Mixed upper = {most(CostTerm::kContentionCompute, kMaxContention),
                       most(CostTerm::kContentionLink, kMaxContention), most(CostTerm::kLinkIdle, sleeps ? 1.0 : 0.0)};
  Mixed best{};
  double best_loss = loss(cost, device, cells);
  const auto consider = [&](Mixed x) {
    for (size_t i = 0; i < x.size(); ++i) x[i] = std::clamp(x[i], 0.0, upper[i]);
    const double here = loss(with_mixed(cost, x), device, cells);
    if (here >= best_loss) return false;
    best = x;
    best_loss = here;
    return true;
  };
  for (const double compute : kContentionGrid) {
    for (const double link : kContentionGrid) {
      for (const double share : kShareGrid) consider({compute, link, share});
    }
  }
  int moves = 0;
  for (double step = kFirstStep; step > kLastStep;) {
    const Mixed from = best;
    bool moved = false;
    for (int way = 0; way < 27; ++way) {
      const int first = way % 3 - 1, second = way / 3 % 3 - 1, third = way / 9 - 1;
      moved = consider({from[0] + step * first, from[1] + step * second, from[2] + step * third}) || moved;
    }
    if (moved && ++moves < kMaxMoves) continue;
    moves = 0;
    step /= 2;
  }
  cost = with_mixed(cost, best);
}

struct Stages {
  std::vector<SweepCell> pure, contended, held_out;
};

// On a GPU promotions take the link beside the CPU's experts, as fetches do.
bool is_contended(Device device, const LayerCounts& n) {
  return is_mixed(n) ? n.fetched > 0 : device == Device::kCuda && n.promoted > 0;
}

Stages split_stages(Device device, std::span<const SweepCell> cells) {
  Stages stages;
  for (const SweepCell& cell : cells) {
    FT_CHECK(cell.seconds > 0);
    if (cell.held_out) {
      stages.held_out.push_back(cell);
    } else if (is_contended(device, cell.counts)) {
      stages.contended.push_back(cell);
    } else if (!is_mixed(cell.counts)) {
      stages.pure.push_back(cell);
    }
  }
  return stages;
}

CostParameters fit_once(Device device, int threads, const Stages& stages, const Dropped& dropped = {}) {
  CostParameters cost = fit_pure(device, threads, stages.pure, dropped);
  fit_mixed(device, stages.contended, dropped, cost);
  return cost;
}

double median_error(const CostParameters& cost, Device device, const std::vector<SweepCell>& cells) {
  if (cells.empty()) return 0;
  std::vector<double> errors;
  errors.reserve(cells.size());
  for (const SweepCell& cell : cells) errors.push_back(relative_error(cost, device, cell));
  return median(errors);
}

void require_arms(std::span<const SweepCell> cells) {
  const auto any = [&](auto wanted) { return std::any_of(cells.begin(), cells.end(), wanted); };
  const auto require = [&](const char* arm, bool used, bool alone) {
    if (!used || alone) return;
    throw Error(ErrorKind::kFailed,
                {.what = std::string("cost model cannot be fitted: no cell of layer_sweep with ") + arm,
                 .action = "measure the grid again with a larger --budget"});
  };
  require("nothing to do", true,
          any([](const SweepCell& c) { return !c.held_out && c.counts.hits + c.counts.misses() == 0; }));
  require("hits alone", any([](const SweepCell& c) { return c.counts.hits > 0; }),
          any([](const SweepCell& c) { return c.counts.hits > 0 && !is_mixed(c.counts); }));
  require("CPU experts alone", any([](const SweepCell& c) { return c.counts.cpu > 0; }),
          any([](const SweepCell& c) { return c.counts.cpu > 0 && !is_mixed(c.counts); }));
  require("fetched experts alone", any([](const SweepCell& c) { return c.counts.fetched > 0; }),
          any([](const SweepCell& c) { return c.counts.fetched > 0 && !is_mixed(c.counts); }));
}

// Relative residuals, centred and widened for the parameters that were taken out of them.
std::vector<double> residuals_of(const std::vector<double>& measured, const std::vector<double>& predicted,
                                 int parameters) {
  std::vector<double> residuals;
  for (size_t i = 0; i < measured.size(); ++i) residuals.push_back(measured[i] / std::max(predicted[i], 1e-12) - 1);
  const double centre = residuals.empty() ? 0 : mean(residuals);
  const auto n = static_cast<double>(residuals.size());
  const double widen = n > parameters ? std::sqrt(n / (n - parameters)) : 1;
  for (double& r : residuals) r = std::clamp((r - centre) * widen, -0.9, 0.9);  // times stay positive
  return residuals;
}

std::vector<SweepCell> resample(const std::vector<SweepCell>& cells, const CostParameters& cost, Device device,
                                const std::vector<double>& residuals, Random& random) {
  std::vector<SweepCell> result = cells;
  for (SweepCell& cell : result) {
    const double predicted = std::max(layer_seconds(cost, device, cell.counts), 1e-12);
    cell.seconds = predicted * (1 + residuals[random.below(residuals.size())]);
  }
  return result;
}

std::vector<double> residuals_of(const std::vector<SweepCell>& cells, const CostParameters& cost, Device device,
                                 int parameters) {
  std::vector<double> measured, predicted;
  for (const SweepCell& cell : cells) {
    measured.push_back(cell.seconds);
    predicted.push_back(layer_seconds(cost, device, cell.counts));
  }
  return residuals_of(measured, predicted, parameters);
}

Interval interval_of(std::vector<double> values, double centre) {
  if (values.empty()) return {centre, centre};
  const double tail = (1 - kFitConfidence) / 2;
  return {std::min(centre, quantile(values, tail)), std::max(centre, quantile(values, 1 - tail))};
}

}  // namespace

bool is_mixed(const LayerCounts& counts) {
  return (counts.hits > 0 ? 1 : 0) + (counts.fetched > 0 ? 1 : 0) + (counts.cpu > 0 ? 1 : 0) > 1;
}

void mark_held_out(std::vector<SweepCell>& cells) {
  int mixed = 0;
  for (SweepCell& cell : cells) cell.held_out = is_mixed(cell.counts) && ++mixed % 3 == 0;
}

CostFit fit_cost(Device device, int threads, std::span<const SweepCell> cells, uint64_t seed, int draws) {
  require_arms(cells);
  const Stages stages = split_stages(device, cells);
  CostFit fit;
  fit.cost = fit_once(device, threads, stages);
  std::vector<SweepCell> fitted = stages.pure;
  fitted.insert(fitted.end(), stages.contended.begin(), stages.contended.end());
  fit.fit_error = median_error(fit.cost, device, fitted);
  fit.held_out_error = median_error(fit.cost, device, stages.held_out);
  fit.held_out_error_without_fixed_costs =
      median_error(fit_once(device, threads, stages, all_fixed()), device, stages.held_out);
  for (int term = 0; term < kCostTermCount; ++term) {
    Dropped dropped{};
    dropped[static_cast<size_t>(term)] = true;
    const bool used = fit.cost.value[term] > 0 && !stages.held_out.empty();
    fit.held_out_error_without.push_back(
        used ? median_error(fit_once(device, threads, stages, dropped), device, stages.held_out) : fit.held_out_error);
  }
  fit.cells_fitted = static_cast<int64_t>(fitted.size());
  fit.cells_held_out = static_cast<int64_t>(stages.held_out.size());

  const auto used = static_cast<int>(
      std::count_if(fit.cost.value, fit.cost.value + kLinearTermCount, [](double value) { return value > 0; }));
  const std::vector<double> pure = residuals_of(stages.pure, fit.cost, device, used);
  const std::vector<double> contended = residuals_of(stages.contended, fit.cost, device, 3);
  Random random(seed);
  for (int i = 0; i < draws; ++i) {
    Stages redrawn;
    redrawn.pure = resample(stages.pure, fit.cost, device, pure, random);
    redrawn.contended = resample(stages.contended, fit.cost, device, contended, random);
    fit.draws.push_back(fit_once(device, threads, redrawn));
  }
  for (int term = 0; term < kCostTermCount; ++term) {
    std::vector<double> values;
    for (const CostParameters& draw : fit.draws) values.push_back(draw.value[term]);
    fit.intervals.push_back(interval_of(std::move(values), fit.cost.value[term]));
  }
  return fit;
}

DenseFit fit_dense(int threads, std::span<const DenseCell> cells, uint64_t seed, int draws) {
  FT_CHECK(!cells.empty());
  constexpr int kColumns = 4;
  std::vector<double> measured, predicted;
  const auto solve = [&](const std::vector<double>& seconds) {
    std::vector<double> a, b;
    for (size_t i = 0; i < cells.size(); ++i) {
      const double tokens = cells[i].tokens;
      const auto context = static_cast<double>(cells[i].context);
      for (const double column : {1.0, tokens, context, (tokens - 1) * context}) {
        a.push_back(column / cells[i].seconds);
      }
      b.push_back((seconds[i] - cells[i].expert_seconds) / cells[i].seconds);
    }
    const std::vector<double> x = nnls(a, b, kColumns);
    return DenseCost{threads, x[0], x[1], x[2], x[3]};
  };
  const auto step = [](const DenseCost& cost, const DenseCell& cell) {
    return cost.seconds(cell.tokens, cell.context) + cell.expert_seconds;
  };
  for (const DenseCell& cell : cells) {
    FT_CHECK(cell.seconds > 0);
    measured.push_back(cell.seconds);
  }
  DenseFit fit;
  fit.cost = solve(measured);
  std::vector<double> errors;
  for (const DenseCell& cell : cells) {
    predicted.push_back(step(fit.cost, cell));
    errors.push_back(std::abs(predicted.back() - cell.seconds) / cell.seconds);
  }
  fit.fit_error = median(errors);
  const std::vector<double> residuals = residuals_of(measured, predicted, kColumns);
  Random random(seed);
  std::array<std::vector<double>, kColumns> values;
  for (int i = 0; i < draws; ++i) {
    std::vector<double> redrawn;
    redrawn.reserve(predicted.size());
    for (const double seconds : predicted) redrawn.push_back(seconds * (1 + residuals[random.below(residuals.size())]));
    fit.draws.push_back(solve(redrawn));
    values[0].push_back(fit.draws.back().fixed);
    values[1].push_back(fit.draws.back().per_token);
    values[2].push_back(fit.draws.back().per_position);
    values[3].push_back(fit.draws.back().per_further_position);
  }
  fit.fixed = interval_of(values[0], fit.cost.fixed);
  fit.per_token = interval_of(values[1], fit.cost.per_token);
  fit.per_position = interval_of(values[2], fit.cost.per_position);
  fit.per_further_position = interval_of(values[3], fit.cost.per_further_position);
  return fit;
}

}  // namespace ft
