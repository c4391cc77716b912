// One replica of a layout as the simulator's problem. Internal to the planner.

#ifndef ATOLL_COORDINATOR_PLANNER_REPLICA_PROBLEM_H_
#define ATOLL_COORDINATOR_PLANNER_REPLICA_PROBLEM_H_

#include <map>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "coordinator/planner/evaluation.h"

namespace atl::plan {

sim::Nanos ToNanos(double seconds);

// Links that messages of stages share, of which each has all of it in its turn: from one site to
// another one link, in send order (the runtime keeps the order, plan_io's link_orders); to other
// nodes of a site the card of the node that sends. Links for which the cluster's file names several
// edges, trunks or changes share what it says.
struct LinkSharing {
  // Names a link from a site to another one, or from a node of a site.
  struct Id {
    std::string from_site, to_site, node;

    bool IsCard() const { return from_site == to_site; }
    auto operator<=>(const Id&) const = default;
  };
  struct SharedLink {
    int stage_links = 0;
    int replicas = 0;
    double card_bytes_per_s = 0;  // 0: of a link from site to site, which has its own
  };
  std::map<Id, SharedLink> shared_links;
  std::map<int, int> trunks;  // replicas that use a trunk
};
// Nothing within a node.
std::optional<LinkSharing::Id> FindSharedLinkId(const Cluster& cluster, const Stage& from,
                                                const Stage& to);
LinkSharing ComputeLinkSharing(const Cluster& cluster, const Layout& layout);

// Returns the link that messages from a stage to another share; null within a node and where the
// file says otherwise.
const LinkSharing::SharedLink* FindSharedLink(const Cluster& cluster, const LinkSharing& sharing,
                                              const Stage& from, const Stage& to);

// The link that the messages of a stage link (P2P channel) use: of what it shares its replica's
// even part, of links that the file describes edge by edge the stage link's; within a node as many
// times as wide as there are members, since an activation at a stage link is the same on all
// members of a tensor-parallel set, which send a part each.
Link LinkBetweenStages(const Cluster& cluster, const LinkSharing& sharing, const Stage& from,
                       const Stage& to);

// One edge, at one rate.
bool IsPlain(const Link& plan_link);

// LinkBetweenStages, given the link between the stages' first devices and what it shares (null
// within a node).
void ApplyLinkSharing(const LinkSharing::SharedLink* shared_link, const Stage& from,
                      const Stage& to, Link& plan_link);

// The link between two devices of a replica, before its stages are known: replicas that cross
// between the same sites share the link, those on a node its card, and each is taken to get its
// part.
Link LinkAtShare(const Cluster& cluster, const Layout& layout, int from, int to);

// One micro-batch's message from a stage to the next.
int64_t StageLinkBytes(const Costs& costs, const Stage& stage, int micro_batch);

// Equal for replicas that are the same to the simulator.
std::string MakeReplicaKey(const Cluster& cluster, const Layout& layout, const LinkSharing& sharing,
                           const Replica& replica);

// Fills the problem, the memory and the optimizer's times. The error says which device lacks how
// much memory for one micro-batch.
absl::StatusOr<ReplicaOutcome> BuildReplica(const Cluster& cluster, const Costs& costs,
                                            const Layout& layout, const LinkSharing& sharing,
                                            const Replica& replica);

}  // namespace atl::plan

#endif  // ATOLL_COORDINATOR_PLANNER_REPLICA_PROBLEM_H_
