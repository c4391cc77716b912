// Which devices make up which replica: AutoHet's grouping, solved by type counts.
//
// Identical devices are interchangeable, so a group is a vector of counts per class. A group's
// effective power is G = (1 - rho) * sum of powers with rho = (P - 1) / (K + P - 1), P members, K
// micro-batches; for a number D of groups the smallest G of all is maximised, every group holding
// at least the memory that a replica needs. A weak device may lower G: devices may stay idle.

#ifndef ATOLL_COORDINATOR_PLANNER_GROUPS_GROUPING_H_
#define ATOLL_COORDINATOR_PLANNER_GROUPS_GROUPING_H_

#include <cstdint>
#include <optional>
#include <vector>

namespace atl::plan {

// `count` equal entities: devices, or tensor-parallel sets that act as one.
struct EntityClass {
  double power = 0;
  int64_t memory_bytes = 0;
  int count = 0;
};

using Composition = std::vector<int>;  // members of each class

struct GroupChoice {
  std::vector<Composition> groups;
  double weakest = 0;  // min of G over the groups
};

double EffectivePower(const std::vector<EntityClass>& classes, const Composition& group,
                      double micro_batches);

// The best division into exactly `groups` groups, each with at least `min_bytes`; nothing if none
// was found. Exact while the product of (count + 1), equal classes as one, is at most 4,096.
// Each entity, strongest first, to the weakest group competes, and is all there is beyond.
std::optional<GroupChoice> GroupByCounts(const std::vector<EntityClass>& classes, int groups,
                                         double micro_batches, int64_t min_bytes);

}  // namespace atl::plan

#endif  // ATOLL_COORDINATOR_PLANNER_GROUPS_GROUPING_H_
