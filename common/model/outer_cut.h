// Which workers of an island keep theta_base and the error residual of which elements, and push
// and pull them: the shards of the model cut by owners. Pure: all members that know the plan and
// the shards agree.
//
// The replicas that hold a layer cut its elements as they do for the optimizer's state
// (ownership.h): each keeps what its shard of replicas owns, and speaks for the share of it that it
// adds up. Tensor-parallel ranks of a replica cut that share among them, elements of the whole
// layer, whatever their tensors' cuts are. Parts begin at multiples of `block`, counted from the
// shard's first element: of PartBlock(the job's push_encoding), so that a push has the same bits
// however a layer is cut.

#ifndef ATOLL_COMMON_MODEL_OUTER_CUT_H_
#define ATOLL_COMMON_MODEL_OUTER_CUT_H_

#include <vector>

#include "common/element_ranges.h"
#include "common/ids.h"
#include "common/protocol/control.h"
#include "common/protocol/island_plan.h"

namespace atl {

struct OuterPart {
  ShardId shard = 0;
  int32_t layer = 0;
  ElementRange range;           // of the shard
  std::vector<NodeId> holders;  // the first pushes and pulls it; the others keep copies

  bool operator==(const OuterPart&) const = default;
};

// Cuts the shards by owners, in the order of the shards, and of elements within each; all elements
// once. A layer that no stage holds has none.
std::vector<OuterPart> CutByOwners(const IslandPlan& plan,
                                   const std::vector<ShardPlacement>& shards, int64_t block);

}  // namespace atl

#endif  // ATOLL_COMMON_MODEL_OUTER_CUT_H_
