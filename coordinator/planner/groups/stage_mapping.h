// Which devices form a pipeline, in which order and with which layers: branch and bound.
//
// The members of a problem's groups (group_order.h) are interchangeable and used one by one: a
// stage is one member of any group with consecutive layers, and members may be left idle. Minimised
// is SpanTrain's equation, as in group_order.h, over links of any number of edges:
//   T(s ...) = max(m (F_s + B_s + W_s), F_s + B_s + 2 c_s + max(T(s + 1 ...), m x_s))
//
// A node is the end of a pipeline, from some layer on; children put a stage before it. T of an end
// is all that counts of it, so a node is dropped when another that uses as many members of every
// group, begins with the same group at the same layer, is no slower: this covers all symmetries of
// equal devices. Bounds of what a node can become: its path through the layers that are left; these
// layers' work on all members that are left; the fastest link into it; and whether, at the best
// time known, members that are left have memory and time for whole layers.
//
// Nodes are expanded a batch at a time, each batch round robin over the numbers of stages, the best
// bound of each first: so complete pipelines are found early, and the search stays exact.

#ifndef ATOLL_COORDINATOR_PLANNER_GROUPS_STAGE_MAPPING_H_
#define ATOLL_COORDINATOR_PLANNER_GROUPS_STAGE_MAPPING_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "coordinator/planner/groups/group_order.h"

namespace atl::plan {

struct MappingOptions {
  int64_t max_nodes = 2'000;   // expanded at most
  int stages = 0;              // of the pipeline; 0: any number
  int in_flight = 1 << 30;     // micro-batches that a stage keeps at most; 1F1B's otherwise
  std::function<bool()> stop;  // polled between batches; true ends the search
};

// T of a mapping, of which stage i is a member of groups[i]; infinite where a stage does not hold
// its layers.
double MappingSeconds(const OrderProblem& problem, const GroupOrder& mapping,
                      const MappingOptions& options);

// Never worse than `known`, if that is given. Nothing: no mapping was found.
// REQUIRES: at most 255 members a group.
std::optional<GroupOrder> MapStages(const OrderProblem& problem, const GroupOrder* known,
                                    const MappingOptions& options);

}  // namespace atl::plan

#endif  // ATOLL_COORDINATOR_PLANNER_GROUPS_STAGE_MAPPING_H_
