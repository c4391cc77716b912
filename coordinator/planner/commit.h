// When the next step can begin. A step counts only once every device knows that all have their
// gradients: they add up their commit votes (common/protocol/commit_exchange.h), which takes a
// latency between sites (within one it is not counted). So the step of devices that finish together
// but are far apart takes that much longer. A device that finishes last, as the first stage mostly
// does, has all other votes by then. Devices that get its vote later begin later: they have to wait
// for their first micro-batch in any case.

#ifndef ATOLL_COORDINATOR_PLANNER_COMMIT_H_
#define ATOLL_COORDINATOR_PLANNER_COMMIT_H_

#include <vector>

#include "coordinator/planner/gradient_sync.h"

namespace atl::plan {

// Per replica, per entity (MapStagesToEntities): when its devices know that the all-reduces of all
// are complete, given when each stage's are.
StageTimes KnownSeconds(const Cluster& cluster, const Layout& layout, const StageTimes& synced_s);

// The time from step to step that the slowest device needs: from when its first operation may begin
// until it knows that all all-reduces are complete and has taken its optimizer's step; in another
// site than the cluster's leader, until that one's message that the next step begins, if that comes
// later. `begun_s`: when each stage's first operation starts, infinite if that is not known, and
// taken as 0 for first stages; `optimizer_s`: per replica, per entity.
double CommittedSeconds(const Cluster& cluster, const Layout& layout, const StageTimes& synced_s,
                        const StageTimes& begun_s, const StageTimes& optimizer_s);

}  // namespace atl::plan

#endif  // ATOLL_COORDINATOR_PLANNER_COMMIT_H_
