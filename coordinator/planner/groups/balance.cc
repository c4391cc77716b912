#include "coordinator/planner/groups/balance.h"

#include <algorithm>
#include <cmath>

#include "common/check.h"
#include "common/status.h"

namespace atl::plan {
namespace {

int64_t CountStageBytes(const StageSlot& stage, int first, int last) {
  return stage.costs->StateBytes(first, last) +
         stage.in_flight * stage.costs->StashBytes(first, last);
}

// With the least saving that fits; infinite where none does, or if it takes longer than `bound_s`
// without any.
double EstimateStageSeconds(const StageSlot& stage, int first, int last, double bound_s) {
  const double seconds = stage.costs->TotalSeconds(first, last);
  if (seconds > bound_s) return INFINITY;
  const std::optional<Saving> saving =
      stage.costs->LeastSaving(first, last, stage.memory_bytes, stage.in_flight);
  if (!saving) return INFINITY;
  return saving->any() ? std::max(seconds, stage.costs->TotalSeconds(first, last, *saving))
                       : seconds;
}

// As many layers as fit from `first` under the bound and the memory.
int FindLastLayer(const StageSlot& stage, int first, double bound_s) {
  int low = first;
  int high = stage.costs->layers();
  while (low < high) {
    const int middle = (low + high + 1) / 2;
    EstimateStageSeconds(stage, first, middle, bound_s) <= bound_s ? low = middle
                                                                   : high = middle - 1;
  }
  return low;
}

// The stages' layers under a bound. Any bound from `least_s` on, and below `next_s`, gives the
// same.
struct Filled {
  std::vector<int> cuts = {0};
  double least_s = 0, next_s = INFINITY;
};

// With every_stage each leaves one layer to each stage behind it; the last cut is short of the
// layers where a stage cannot hold even one.
Filled Fill(const std::vector<StageSlot>& stages, double bound_s, bool every_stage) {
  Filled filled;
  std::vector<int>& cuts = filled.cuts;
  int behind = every_stage ? static_cast<int>(stages.size()) : 0;
  for (const StageSlot& stage : stages) {
    behind = std::max(0, behind - 1);
    const int first = cuts.back();
    const int most = stage.costs->layers() - behind;
    const int last = std::min(FindLastLayer(stage, first, bound_s), most);
    if (last > first) {
      filled.least_s = std::max(filled.least_s, EstimateStageSeconds(stage, first, last, bound_s));
    }
    if (last < most) {
      filled.next_s =
          std::min(filled.next_s, EstimateStageSeconds(stage, first, last + 1, INFINITY));
    }
    cuts.push_back(last);
    if (every_stage && last <= first) {
      cuts.resize(stages.size() + 1, 0);
      cuts.back() = 0;
      break;
    }
  }
  return filled;
}

}  // namespace

absl::StatusOr<std::vector<int>> BalanceLayers(const std::vector<StageSlot>& stages,
                                               bool every_stage) {
  ATOLL_CHECK(!stages.empty());
  const int layers = stages[0].costs->layers();
  double high = 0;
  for (const StageSlot& stage : stages) {
    high = std::max(high, stage.costs->MostSeconds());
  }
  high = high * (1 + 1e-9) + 1e-12;
  std::vector<int> best = Fill(stages, high, every_stage).cuts;
  if (best.back() < layers) {
    int64_t room = 0;
    for (const StageSlot& stage : stages) room += stage.memory_bytes;
    const StageSlot& last = stages.back();
    return absl::ResourceExhaustedError(
        absl::StrCat("the stages hold ", best.back(), " of ", layers, " layers; of ", room,
                     " bytes in all, ", CountStageBytes(last, best.back(), layers),
                     " more are needed. Add devices, or use larger ones, a smaller micro-batch "
                     "or more tensor parallelism"));
  }
  // All stages busy all the time, each with its part of every layer: no cuts are quicker.
  double rate = 0;
  for (const StageSlot& stage : stages) rate += 1 / stage.costs->TotalSeconds(0, layers);
  double low = 1 / rate;
  const auto try_bound = [&](double bound_s) {
    Filled filled = Fill(stages, bound_s, every_stage);
    if (filled.cuts.back() == layers) {
      best = std::move(filled.cuts);
      high = std::min(bound_s, filled.least_s);
    } else {
      low = std::max(bound_s, filled.next_s);
    }
  };
  for (double above = 1.1 * low; std::max(above, low) < high; above *= 1.3) {
    try_bound(std::max(above, low));
  }
  // Below `low` none is enough.
  for (int i = 0; i < 60 && high - low > high * 1e-7; ++i) try_bound((low + high) / 2);
  return best;
}

double DivisionSeconds(const DivisionProblem& problem, const std::vector<int>& layers_of_stage) {
  const int p = static_cast<int>(layers_of_stage.size());
  const double per_layer = problem.forward_s + problem.backward_s;
  double slowest = 0;
  double through = 0;
  for (int s = 0; s < p; ++s) {
    slowest = std::max(slowest, layers_of_stage[s] * per_layer);
    through += layers_of_stage[s] * per_layer;
  }
  double round_trip = through;  // from stage s on
  for (const double c : problem.transfer_s) round_trip += 2 * c;
  double before = 0;
  double ideal = 0;
  double extra = 0;
  for (int s = 0; s < p; ++s) {
    const double work = layers_of_stage[s] * per_layer;
    ideal = std::max(ideal, before + problem.micro_batches * work);
    const int64_t slots =
        layers_of_stage[s] == 0 ? INT32_MAX : problem.memory_layers[s] / layers_of_stage[s];
    if (slots == 0) return INFINITY;
    const double rounds =
        std::ceil(static_cast<double>(problem.micro_batches) / static_cast<double>(slots)) - 1;
    extra =
        std::max(extra, rounds * std::max(0.0, round_trip - static_cast<double>(slots) * slowest));
    const double c = s + 1 < p ? problem.transfer_s[s] : 0;
    before += work + 2 * c;
    round_trip -= work + 2 * c;
  }
  return ideal + extra;
}

namespace {

// Steepest descent from `best`.
double Descend(const DivisionProblem& problem, std::vector<int>& best) {
  const int p = static_cast<int>(best.size());
  double best_s = DivisionSeconds(problem, best);
  // Every round improves or ends; the bound only guards against cycles of rounding.
  for (int round = 0; round < 1000; ++round) {
    std::vector<int> next = best;
    double next_s = best_s;
    for (int from = 0; from < p; ++from) {
      for (int to = 0; to < p; ++to) {
        for (const int moved : {1, 2}) {
          if (from == to || best[from] < moved) continue;
          std::vector<int> tried = best;
          tried[from] -= moved;
          tried[to] += moved;
          const double tried_s = DivisionSeconds(problem, tried);
          if (!(tried_s < next_s)) continue;
          next_s = tried_s;
          next = std::move(tried);
        }
      }
    }
    if (!(next_s < best_s)) break;
    best = std::move(next);
    best_s = next_s;
  }
  return best_s;
}

}  // namespace

std::vector<int> DivideLayers(const DivisionProblem& problem) {
  const int p = static_cast<int>(problem.memory_layers.size());
  ATOLL_CHECK(p >= 1 && problem.transfer_s.size() + 1 == problem.memory_layers.size());
  std::vector<int> best(p, problem.layers / p);
  for (int s = 0; s < problem.layers % p; ++s) ++best[p - 1 - s];
  double best_s = Descend(problem, best);
  for (int front = 1; front < p; ++front) {
    for (int each = problem.layers / p; each >= 1; --each) {
      std::vector<int> start(p, each);
      const int rest = problem.layers - front * each;
      for (int s = front; s < p; ++s) {
        start[s] = rest / (p - front) + (s >= p - rest % (p - front) ? 1 : 0);
      }
      const double start_s = Descend(problem, start);
      if (!(start_s < best_s)) continue;
      best = std::move(start);
      best_s = start_s;
    }
  }
  return best;
}

}  // namespace atl::plan
