// Transport of the collectives (all-reduce, reduce-scatter, all-gather) between an island's
// workers. It follows from the plan, so that all members, and the planner, decide alike.

#ifndef ATOLL_COMMON_PROTOCOL_PEER_COLLECTIVES_H_
#define ATOLL_COMMON_PROTOCOL_PEER_COLLECTIVES_H_

#include <algorithm>
#include <functional>

#include "common/protocol/island_plan.h"

namespace atl {

// Whether it is their peer links: where all have keys, or any has endpoints in several networks.
// Else Gloo's own connections, which are plaintext, between one address of each worker.
template <class Members, class ToMember = std::identity>
bool CollectivesUsePeerLinks(const Members& members, ToMember member = {}) {
  return std::ranges::all_of(
             members, [](const IslandMember& m) { return !m.public_key.empty(); }, member) ||
         std::ranges::any_of(
             members, [](const IslandMember& m) { return !m.more_endpoints.empty(); }, member);
}

}  // namespace atl

#endif  // ATOLL_COMMON_PROTOCOL_PEER_COLLECTIVES_H_
