// One layout's step, simulated: how long it takes, what of it the operations do not hide, and what
// bounds it.

#ifndef ATOLL_COORDINATOR_PLANNER_EVALUATION_H_
#define ATOLL_COORDINATOR_PLANNER_EVALUATION_H_

#include <cmath>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "coordinator/planner/gradient_sync.h"
#include "coordinator/planner/layout.h"
#include "coordinator/simulator/bounds.h"
#include "coordinator/simulator/search.h"

namespace atl::plan {

// The simulated step of one kind of replica (equal replicas are simulated once). Of replicas that
// share links the schedule is one's, alone on its even part of them; the makespan, the bound and
// done_ns are those of the slowest when all are simulated together.
struct ReplicaOutcome {
  std::string kind;           // equal for replicas that take equally long
  std::vector<int> replicas;  // indices of all that are equal
  // One chunk per stage, one device per entity (numbered as MapStagesToEntities does).
  sim::Problem problem;
  sim::Found found;
  sim::Bound bound;
  std::vector<int64_t> state_bytes;      // per entity, on each of its devices
  std::vector<int64_t> memory_bytes;     // per entity: what a device has for state and activations
  std::vector<sim::Nanos> begun_ns;      // per stage: its first operation starts
  std::vector<sim::Nanos> done_ns;       // per stage: its last gradient is there
  std::vector<sim::Nanos> optimizer_ns;  // per entity
  // Messages that become ready once some stage has all of its gradients.
  struct Send {
    int stage = 0;
    bool backward = false;
    sim::Nanos ready_ns = 0;
  };
  std::vector<Send> last_sends;
};

struct Outcome {
  double step_s = 0;      // from step to step: operations, all-reduces, commit votes, optimizer
  double sync_s = 0;      // of it, all-reduces that the slowest replica's operations do not hide
  double commit_s = 0;    // of it, until far sites know of each other (gradient_sync.h)
  double bound_s = 0;     // no schedule of this layout is faster
  bool together = false;  // replicas share links and were simulated together
  std::vector<ReplicaOutcome> kinds;
  StepEnds ends = {};
};

// The kind of replica that takes longest.
const ReplicaOutcome& SlowestKind(const Outcome& outcome);

// In which order a replica's entities run its stages' operations. Chunks are stages; W of an
// unsplit stage runs with its B and is not listed.
struct ReplicaOrder {
  sim::Schedule schedule;
  std::set<int32_t> unsplit;
};

struct Evaluation {
  int restarts = 24;  // simulations per kind of replica, for searched schedules
  uint64_t seed = 1;
  const Outcome* known = nullptr;  // kinds already evaluated are taken from here
  // CANCELLED if no schedule's operations can be as fast as that, or no step as `step_limit_s`.
  double limit_s = INFINITY, step_limit_s = INFINITY;
  // By replica: run as they are, whatever the layout's schedule. FAILED_PRECONDITION: operations
  // would wait for each other; RESOURCE_EXHAUSTED: more micro-batches in flight than memory holds.
  const std::vector<ReplicaOrder>* orders = nullptr;
};

// Simulates the layout. The error says which device lacks how much memory. What goes from one site
// to another shares a link in send order, one message at a time at full bandwidth (PutTogether);
// replicas that use one trunk share it evenly, and within a replica messages over a trunk wait for
// each other. Gradients are summed as gradient_sync.h says, from the moment on at which all holders
// of a layer are done with it; then sites exchange commit votes (gradient_sync.h).
absl::StatusOr<Outcome> EvaluateLayout(const Cluster& cluster, const Costs& costs,
                                       const Layout& layout, const Evaluation& evaluation);

// The same with the savings that give the shortest step: those for as many micro-batches in flight
// as 1F1B has, for half as many, and for one. Sets them.
absl::StatusOr<Outcome> EvaluateSaving(const Cluster& cluster, const Costs& costs,
                                       const Evaluation& evaluation, Layout& layout);

}  // namespace atl::plan

#endif  // ATOLL_COORDINATOR_PLANNER_EVALUATION_H_
