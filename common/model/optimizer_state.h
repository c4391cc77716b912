// State that each optimizer keeps of a layer's elements beside the parameters, and how a layer may
// be cut among owners. Pure: planners and workers agree on it.

#ifndef ATOLL_COMMON_MODEL_OPTIMIZER_STATE_H_
#define ATOLL_COMMON_MODEL_OPTIMIZER_STATE_H_

#include <vector>

#include "absl/strings/string_view.h"
#include "common/model/layout.h"
#include "common/model/tensor_part.h"
#include "common/protocol/job_spec.h"

namespace atl {

// Names of what is kept of an element, for messages. Empty: the optimizer does not use the slot.
struct StateSlots {
  absl::string_view first, second;
};
StateSlots GetStateSlots(InnerOptimizer optimizer);

// The elements of a layer that have the second slot are those from here to the end; all have the
// first one. Of SGD none, and of Muon none of a block's matrices.
int64_t SecondSlotBegin(InnerOptimizer optimizer, const LayerLayout& layout);

// Numbers kept of the elements in `owned`, both slots together.
int64_t StateElements(InnerOptimizer optimizer, const LayerLayout& layout, Range owned);

// Returns whether the optimizer steps this parameter as a whole matrix: Muon does so with the
// matrices of blocks.
bool StepsWhole(InnerOptimizer optimizer, const ParamSpec& param);

// The parameters of a layer that one owner has whole, in order; everything else may be cut
// anywhere.
std::vector<Range> UndividedRanges(InnerOptimizer optimizer, const LayerLayout& layout);

// Numbers that a step of the layer needs beside all that: scratch memory, which layers share.
int64_t StepScratchElements(InnerOptimizer optimizer, const LayerLayout& layout);

// Counts the rows of a matrix in memory.
int64_t CountRows(const ParamSpec& matrix);

// Returns whether tensor parallelism may cut matrices under this optimizer.
bool AllowsTensorParallelism(InnerOptimizer optimizer);

}  // namespace atl

#endif  // ATOLL_COMMON_MODEL_OPTIMIZER_STATE_H_
