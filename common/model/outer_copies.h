// Who keeps copies of what others own for the exchange with the parameter servers, and how much all
// keep. Pure.

#ifndef ATOLL_COMMON_MODEL_OUTER_COPIES_H_
#define ATOLL_COMMON_MODEL_OUTER_COPIES_H_

#include <map>
#include <vector>

#include "common/ids.h"
#include "common/protocol/control.h"
#include "common/protocol/island_plan.h"

namespace atl {

// Where fewer than `copies` + 1 workers own an element, the workers behind the first holder, in the
// plan's order, keep copies, as far as there are any.
std::vector<NodeId> WithCopies(const IslandPlan& plan, std::vector<NodeId> holders, int32_t copies);

// Of each worker that keeps any. A shard for each layer: how layers are cut into shards moves no
// more than a block between workers. `block` as in CutByOwners.
std::map<NodeId, int64_t> KeptElements(const IslandPlan& plan, const std::vector<LayerSize>& layers,
                                       int32_t copies, int64_t block);

}  // namespace atl

#endif  // ATOLL_COMMON_MODEL_OUTER_COPIES_H_
