// When the gradients of every stage, after gradient accumulation over its micro-batches, are
// all-reduced over the replicas, and when all devices know that they are.
//
// Layer L's ring joins the stages that hold it in each replica; consecutive layers with the same
// holders go together. Rings run in descending order of layers, each once all its holders are done
// with their last micro-batch, while other stages still compute. A ring of n sends
// 2 (n - 1) / n times the gradient over each of its links and waits 2 (n - 1) times for the slowest
// one's latency. Rings through one entity, one node's card or one pair of sites share that in turn.
//
// At several sites, members of a site add up first, as the peer link does
// (worker/collectives/peer.h): within a site as much goes as around a ring of its members, and
// between two sites, in each direction, their members' parts of the gradient once. That is twice
// the gradient between all sites for each site beyond the first, however many replicas a site has.
// At one site it is a ring, and where the layout says so (Layout::one_ring).

#ifndef ATOLL_COORDINATOR_PLANNER_GRADIENT_SYNC_H_
#define ATOLL_COORDINATOR_PLANNER_GRADIENT_SYNC_H_

#include <vector>

#include "coordinator/planner/cluster/cluster_index.h"
#include "coordinator/planner/layout.h"

namespace atl::plan {

// Per replica, per stage.
using StageTimes = std::vector<std::vector<double>>;

// A message from stage to stage, on what gradients may share with it: a node's card, or the link
// between two sites.
struct StageMessage {
  int from = 0, to = 0;  // devices
  double ready_s = 0;
  double bytes = 0;
};

// Returns when each stage's all-reduce is complete, given when its own gradients are. With one
// replica: at once. Messages of stages that become ready while a ring uses the same card or link go
// first.
StageTimes SynchroniseGradients(const Cluster& cluster, const Costs& costs, const Layout& layout,
                                const StageTimes& ready_s,
                                const std::vector<StageMessage>& messages = {});

// The slowest all-reduce if all gradients are ready at 0.
double SyncSeconds(const ClusterIndex& index, const Costs& costs, const Layout& layout);

// ---- the commit ----
//
// When the next step can begin. A step counts only once every device knows that all have their
// gradients: they add up their commit votes (common/protocol/commit_exchange.h), which takes a
// latency between sites (within one it is not counted). So the step of devices that finish together
// but are far apart takes that much longer. A device that finishes last, as the first stage mostly
// does, has all other votes by then. Devices that get its vote later begin later: they have to wait
// for their first micro-batch in any case.

// Per replica, per entity (MapStagesToEntities): when its devices know that the all-reduces of all
// are complete, given when each stage's are.
StageTimes KnownSeconds(const Cluster& cluster, const Layout& layout, const StageTimes& synced_s);

// The ends of what follows a step's operations.
struct StepEnds {
  StageTimes synced_s;     // per replica, per stage: its all-reduces
  StageTimes known_s;      // per replica, per entity: all commit votes (KnownSeconds)
  StageTimes optimizer_s;  // likewise: how long its step takes after that
};

// The time from step to step that the slowest device needs: from when its first operation may begin
// until it knows that all all-reduces are complete and has taken its optimizer's step; in another
// site than the cluster's leader, until that one's message that the next step begins, if that comes
// later. `begun_s`: when each stage's first operation starts, infinite if that is not known, and
// taken as 0 for first stages.
double CommittedSeconds(const Cluster& cluster, const Layout& layout, const StepEnds& ends,
                        const StageTimes& begun_s);

}  // namespace atl::plan

#endif  // ATOLL_COORDINATOR_PLANNER_GRADIENT_SYNC_H_
