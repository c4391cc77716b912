#include "common/model/optimizer_state.h"

#include <algorithm>

#include "common/check.h"

namespace atl {

StateSlots GetStateSlots(InnerOptimizer optimizer) {
  switch (optimizer) {
    case InnerOptimizer::kAdamW:
    case InnerOptimizer::kLamb:
    case InnerOptimizer::kMuon:
      return {"first moment", "second moment"};
    case InnerOptimizer::kSgd:
      return {"momentum", ""};
    case InnerOptimizer::kRmsProp:
      return {"momentum", "mean square"};
  }
  ATOLL_CHECK(false, "optimizer ", static_cast<int>(optimizer));
  __builtin_unreachable();
}

bool StepsWhole(InnerOptimizer optimizer, const ParamSpec& param) {
  if (optimizer != InnerOptimizer::kMuon) return false;
  switch (param.use) {
    case Param::kQuery:
    case Param::kKey:
    case Param::kValue:
    case Param::kOut:
    case Param::kGate:
    case Param::kUp:
    case Param::kDown:
    case Param::kSharedGate:
    case Param::kSharedUp:
    case Param::kSharedDown:
    case Param::kExpertGate:
    case Param::kExpertUp:
    case Param::kExpertDown:
    case Param::kAdapterA:
    case Param::kAdapterB:
      return true;
    default:
      return false;  // embeddings, routers, head, norms, biases
  }
}

std::vector<Range> UndividedRanges(InnerOptimizer optimizer, const LayerLayout& layout) {
  std::vector<Range> ranges;
  for (const ParamSpec& param : layout.params) {
    if (StepsWhole(optimizer, param)) ranges.push_back({param.offset, param.end()});
  }
  return ranges;
}

int64_t SecondSlotBegin(InnerOptimizer optimizer, const LayerLayout& layout) {
  if (GetStateSlots(optimizer).second.empty()) return layout.size;
  int64_t begin = 0;
  for (const Range& range : UndividedRanges(optimizer, layout)) {
    if (range.begin != begin) break;
    begin = range.end;
  }
  return begin;
}

int64_t StateElements(InnerOptimizer optimizer, const LayerLayout& layout, Range owned) {
  const int64_t begin = std::max(owned.begin, SecondSlotBegin(optimizer, layout));
  return owned.size() + std::max<int64_t>(0, owned.end - begin);
}

int64_t CountRows(const ParamSpec& matrix) { return matrix.shape[matrix.transposed ? 1 : 0]; }

// Counts the scratch elements of Muon: the largest matrix twice, and twice the square of the
// smaller side.
int64_t StepScratchElements(InnerOptimizer optimizer, const LayerLayout& layout) {
  int64_t most = 0, side = 0;
  for (const ParamSpec& param : layout.params) {
    if (!StepsWhole(optimizer, param)) continue;
    most = std::max(most, param.size);
    side = std::max(side, std::min(CountRows(param), param.size / CountRows(param)));
  }
  return 2 * (most + side * side);
}

bool AllowsTensorParallelism(InnerOptimizer optimizer) {
  return optimizer != InnerOptimizer::kMuon;
}

}  // namespace atl
