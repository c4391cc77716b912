// One replica of a layout as the simulator's problem. Internal to the planner.

#ifndef ATOLL_COORDINATOR_PLANNER_REPLICA_PROBLEM_H_
#define ATOLL_COORDINATOR_PLANNER_REPLICA_PROBLEM_H_

#include <map>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "coordinator/planner/layout.h"

namespace atl::plan {

sim::Nanos ToNanos(double seconds);

// Links that messages between sites share. All that goes from one site to another shares one link
// and uses it in send order, each message at full bandwidth (the runtime keeps the order, plan_io's
// link_orders). Links for which the cluster's file names several edges, trunks or changes share
// what it says.
struct LinkSharing {
  struct SharedLink {
    int stage_links = 0;
    int replicas = 0;
  };
  std::map<std::pair<std::string, std::string>, SharedLink> shared_links;  // from site to site
  std::map<int, int> trunks;  // replicas that use a trunk
};
LinkSharing ComputeLinkSharing(const Cluster& cluster, const Layout& layout);

// The shared link from a stage's site to another's; null within a site and where the file says
// otherwise.
const LinkSharing::SharedLink* FindSharedLink(const Cluster& cluster, const LinkSharing& sharing,
                                              const Stage& from, const Stage& to);

// The link that the messages of a stage link (P2P channel) use: of a shared link its replica's even
// part, of other links between sites the stage link's; within a node as many times as wide as there
// are members, since an activation at a stage link is the same on all members of a tensor-parallel
// set, which send a part each.
Link LinkBetweenStages(const Cluster& cluster, const LinkSharing& sharing, const Stage& from,
                       const Stage& to);

// One edge, at one rate.
bool IsPlain(const Link& plan_link);

// LinkBetweenStages, given the link between the stages' first devices, the shared link (null within
// a site), and whether they are in one node.
void ApplyLinkSharing(const LinkSharing::SharedLink* shared_link, bool within_node,
                      const Stage& from, const Stage& to, Link& plan_link);

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
