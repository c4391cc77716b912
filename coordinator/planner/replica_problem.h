// A layout as the simulator's problem: one replica, and all of them together.

#ifndef ATOLL_COORDINATOR_PLANNER_REPLICA_PROBLEM_H_
#define ATOLL_COORDINATOR_PLANNER_REPLICA_PROBLEM_H_

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "coordinator/planner/cluster/cluster_index.h"
#include "coordinator/planner/evaluation.h"

namespace atl::plan {

sim::Nanos ToNanos(double seconds);

// Links that messages of stages share, of which each has all of it in its turn: from one site to
// another one link, in send order (the runtime keeps the order, plan_io's link_orders); to other
// nodes of a site the card of the node that sends. Links for which the cluster's file names several
// edges, trunks or changes share what it says. REQUIRES: the cluster outlives it and does not
// change.
class LinkSharing {
 public:
  struct SharedLink {
    int stage_links = 0;
    int replicas = 0;
    double card_bytes_per_s = 0;  // 0: of a link from site to site, which has its own
  };

  explicit LinkSharing(const Cluster& cluster) : cluster_(cluster), index_(cluster) {}
  LinkSharing(const Cluster& cluster, const Layout& layout) : LinkSharing(cluster) {
    Count(layout);
  }

  // In place of what was counted before.
  void Count(const Layout& layout);
  // Each replica has what it shares to itself: in its turn, at full bandwidth.
  void SetAlone();

  // Returns the number of what messages from a stage to another share; -1: they are in one node.
  int Find(const Stage& from, const Stage& to) const;
  // The same; -1 also where the file says otherwise.
  int FindLane(const Stage& from, const Stage& to) const;
  bool IsCard(int shared_link) const { return shared_link >= index_.sites() * index_.sites(); }
  const std::vector<SharedLink>& links() const { return links_; }  // by number
  // Returns how many replicas use a trunk.
  int CountUsers(int trunk) const;

  // The link that the messages of a stage link (P2P channel) use: of what it shares its replica's
  // even part, of links that the file describes edge by edge the stage link's; within a node as
  // many times as wide as there are members, since an activation at a stage link is the same on all
  // members of a tensor-parallel set, which send a part each.
  Link LinkBetween(const Stage& from, const Stage& to) const;

  const ClusterIndex& index() const { return index_; }

 private:
  const Cluster& cluster_;
  ClusterIndex index_;
  std::vector<SharedLink> links_;  // from site to site, then nodes' cards
  std::map<int, int> trunks_;      // replicas that use a trunk
};

// One edge, at one rate.
bool IsPlain(const Link& plan_link);

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

// All replicas at once. Where several cross between two sites, they use the inter-site link in send
// order (micro-batch, replica), each message at full bandwidth: what one replica takes depends on
// the others, so they are simulated together.
struct Together {
  // Pipeline r is replica r with a chunk per stage; devices are its entities, one replica's after
  // the other's.
  sim::Problem problem;
  sim::Schedule schedule;
  // Between which sites each of the network's lanes is; of one site: a node's card.
  std::vector<std::pair<std::string, std::string>> lanes;
};

// The schedules found for the kinds, together. REQUIRES: the outcome is of this layout.
Together PutTogether(const Cluster& cluster, const Layout& layout, const Outcome& outcome);

}  // namespace atl::plan

#endif  // ATOLL_COORDINATOR_PLANNER_REPLICA_PROBLEM_H_
