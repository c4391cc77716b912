#include "coordinator/planner/groups/balance.h"

#include <algorithm>
#include <cmath>

#include "common/check.h"

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

// Returns the end of as many layers as fit from `first` under the bound and the memory.
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

}  // namespace atl::plan
