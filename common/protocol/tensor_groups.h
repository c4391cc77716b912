// Tensor-parallel groups of an island's plan. Stages may have groups of different size; a layer has
// groups of one size in all replicas, whose ranks hold equal parts of it.
//
// Every rank has all of an activation and of a gradient. So between two stages a message goes to
// each rank of the receiving group once, from the ranks of the sending group in turn.

#ifndef ATOLL_COMMON_PROTOCOL_TENSOR_GROUPS_H_
#define ATOLL_COMMON_PROTOCOL_TENSOR_GROUPS_H_

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "common/protocol/island_plan.h"

namespace atl {

// Returns how many devices share the layer. REQUIRES: a stage of the plan's first replica holds it.
int TensorDegree(const IslandPlan& plan, int32_t layer);

// Returns a layer's ratios by rank: IslandPlan::tensor_split_ratios, made explicit and in lowest
// terms, so that equal cuts are equal. {1}: it is not cut. REQUIRES: as above.
std::vector<int32_t> GetTensorSplitRatios(const IslandPlan& plan, int32_t layer);

// The rank, of so many senders, that sends a message to rank `rank` of the receivers.
inline size_t SendingRank(size_t rank, size_t senders) { return rank % senders; }

// Ranks that send and receive one message between two stages.
std::vector<std::pair<size_t, size_t>> MessagePairs(size_t senders, size_t receivers);

}  // namespace atl

#endif  // ATOLL_COMMON_PROTOCOL_TENSOR_GROUPS_H_
