// One way to lay a job out over a cluster, and what it costs.
//
// A layout is built from entities: tensor-parallel sets of devices of one type in one node that act
// as one. An entity holds one stage of its replica, or several (interleaved, V-shaped). Entities
// may differ in size, but for those that hold a layer in the other replicas (DegreesAgree).
// Replicas may be cut differently and take different numbers of micro-batches.

#ifndef ATOLL_COORDINATOR_PLANNER_LAYOUT_H_
#define ATOLL_COORDINATOR_PLANNER_LAYOUT_H_

#include <cmath>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "coordinator/planner/cluster/cluster.h"
#include "coordinator/planner/cluster/costs.h"
#include "coordinator/simulator/bounds.h"
#include "coordinator/simulator/search.h"

namespace atl::plan {

// The operator's constraints: filters of the one search. Those of the layout hold for every
// candidate; those of devices and links apply to the cluster before the search (constraints.h).
struct Constraints {
  int stages = 0;        // devices, or tensor-parallel sets, of every pipeline; 0: any number
  int replicas = 0;      // 0: any number
  std::string schedule;  // a family of the simulator; empty: any

  std::set<std::string> exclude = {};    // nodes, and devices by their ids
  std::set<std::string> sites = {};      // all others take no part; empty: all take part
  int64_t memory_reserve_bytes = 0;      // of each device, kept back
  std::set<std::string> too_small = {};  // for reasons: devices that have no more (constraints.h)
  // From site to site: what may be sent in a day (traffic.h).
  std::map<std::pair<std::string, std::string>, double> bytes_per_day = {};

  bool Excludes(const std::string& node, const std::string& id) const {
    return exclude.contains(node) || exclude.contains(id);
  }
  // Constraints of the layout.
  bool any() const { return stages > 0 || replicas > 0 || !schedule.empty(); }
};

// The objective of a plan (objective.h).
struct Objective {
  bool cheapest = false;         // the cheapest step; otherwise the shortest
  double step_s_max = INFINITY;  // of a step: what a deadline leaves for it
  double price_max = INFINITY;   // of a step: what a budget leaves for it

  bool limited() const { return !std::isinf(step_s_max) || !std::isinf(price_max); }
};

// How devices are mapped to the stages of a pipeline: by local search (refine.h, and SpanTrain's
// order of groups), or, after refine.h, by branch and bound (stage_mapping.h), which proves how far
// from the best mapping it is.
enum class Search { kLocal, kBranchAndBound };

struct Job {
  int global_batch = 1;              // samples per step
  std::vector<int> micro_batches;    // sizes to try; empty: 1, 2, 4, 8
  std::vector<int> tensor_parallel;  // sizes to try; empty: 1, 2, 4, 8
  double gradient_bytes = 4;         // per parameter as sent
  Constraints fixed;
  Objective objective;
  Search search = Search::kBranchAndBound;
};

// Sizes that cannot be: named with their value.
absl::Status Validate(const Job& job);
// Refuses models of which so many samples are more bytes than can be counted.
absl::Status CheckBytes(const Model& model, int64_t samples);

struct Stage {
  // The tensor-parallel set, by rank. Where layers are shared evenly it is of the first one's type.
  std::vector<int> devices;
  int first_layer = 0;  // layers [first_layer, last_layer)
  int last_layer = 0;
  Saving saving = {};
};

struct Replica {
  std::vector<Stage> stages;  // in the order of the layers; some may name the same devices
  int micro_batches = 1;
};

// Which of a replica's entities holds each stage, entities numbered as they first appear.
std::vector<int> MapStagesToEntities(const Replica& replica);

// How stages lie on entities: one each; or two each, the second ones in the same order
// (interleaved), or in the opposite one (V).
enum class Shape { kPlain, kInterleaved, kVShaped };

struct Layout {
  int tensor_parallel = 1;        // size of its largest entity
  int micro_batch = 1;            // samples
  std::string schedule = "best";  // a family of the simulator
  std::vector<Replica> replicas;
  Shape shape = Shape::kPlain;
  bool one_ring = false;       // gradients go around all replicas, and are not summed by site first
  bool split_backward = true;  // false: B and W are one operation, as in 1f1b and gpipe always
  std::vector<int> tensor_split_ratios = {};  // of every layer, relative, by rank; empty: even
};

// The simulated step of one kind of replica (equal replicas are simulated once). Of replicas that
// share links the schedule is one's, alone on its even part of them or with them to itself; the
// makespan, the bound and done_ns are those of the slowest when all are simulated together.
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
  double commit_s = 0;    // of it, until far sites know of each other (commit.h)
  double bound_s = 0;     // no schedule of this layout is faster
  bool together = false;  // replicas share links and were simulated together
  std::vector<ReplicaOutcome> kinds;
};

// The kind of replica that takes longest.
const ReplicaOutcome& SlowestKind(const Outcome& outcome);

// By kind of replica: searches that go on where another layout has the same kind, or where this one
// is evaluated for longer. Of one seed.
using ScheduleSearches = std::map<std::string, sim::ScheduleSearch>;

// In which order a replica's entities run its stages' operations. Chunks are stages; W of an
// unsplit stage runs with its B and is not listed.
struct ReplicaOrder {
  sim::Schedule schedule;
  std::set<int32_t> unsplit;
};

struct Evaluation {
  int restarts = 24;  // simulations per kind of replica, for searched schedules
  uint64_t seed = 1;
  // Simulated operations per kind: large pipelines get fewer restarts, but at least 4.
  int64_t operations = 1'000'000;
  const Outcome* known = nullptr;  // kinds already evaluated are taken from here
  // CANCELLED if no schedule's operations can be as fast as that, or no step as `step_limit_s`.
  double limit_s = INFINITY, step_limit_s = INFINITY;
  ScheduleSearches* searches = nullptr;  // empty at first; forgets when there are too many
  // By replica: run as they are, whatever the layout's schedule. FAILED_PRECONDITION: operations
  // would wait for each other; RESOURCE_EXHAUSTED: more micro-batches in flight than memory holds.
  const std::vector<ReplicaOrder>* orders = nullptr;
};

// Orders a stage's devices by their time for the whole model; their types, but for the first one's,
// do not matter.
void SlowestFirst(const Cluster& cluster, const Costs& costs, int micro_batch,
                  std::vector<int>& devices);

// Returns, for a group of devices that share layers, what a stage on it takes, and the memory of
// each of them as if the split were even.
StageCosts GroupCosts(const Cluster& cluster, const Costs& costs, int micro_batch,
                      const std::vector<int>& devices, const std::vector<int>& tensor_split_ratios);
int64_t GroupBytes(const Cluster& cluster, const Costs& costs, const std::vector<int>& devices,
                   const std::vector<int>& tensor_split_ratios);

// Gives the stages the least savings with which their devices hold as many micro-batches of them as
// 1F1B has in flight, at most `in_flight`; where none is enough, half as many, and so on down to
// one. None at all unless costs say kWhereNeeded.
void SaveMemory(const Cluster& cluster, const Costs& costs, int micro_batch, int in_flight,
                Replica& replica, const std::vector<int>& tensor_split_ratios = {});

// Cuts that balance the layers for this order of stages, one per entity, under memory: with 1F1B's
// activations where they fit, else with half as many, and so on down to one micro-batch; and
// SaveMemory for these.
struct CutOptions {
  std::vector<int> tensor_split_ratios = {};
  bool every_stage = false;  // gets a layer at least; otherwise stages without any are left out
};
absl::Status CutReplica(const Cluster& cluster, const Costs& costs, int micro_batch,
                        Replica& replica, const CutOptions& options = {});

// Gives every entity of a plainly placed layout two stages. False where there are too few layers or
// too little memory for that. REQUIRES: layout.shape is kPlain, `shape` is not.
bool Reshape(const Cluster& cluster, const Costs& costs, Shape shape, Layout& layout);

// Gives a layout a schedule, and the unsplit backward that goes with it; a plainly placed one the
// shape, too. A layout that has a shape keeps it. The error says what the schedule needs.
absl::Status SetSchedule(const Cluster& cluster, const Costs& costs, const std::string& schedule,
                         Layout& layout);

bool Satisfies(const Constraints& fixed, const Layout& layout);

// Returns whether a stage is on a device of the node.
bool UsesNode(const Cluster& cluster, const Layout& layout, const std::string& node);
// Returns whether a stage is on a device of the cluster's leader, which takes part in an island's
// plans. True for all layouts where none is named.
bool UsesLeader(const Cluster& cluster, const Layout& layout);

// Gradients are summed rank by rank: all replicas hold a layer by entities of one size; and those
// of a tied head and its embedding, which have one table, are of one size.
bool DegreesAgree(const Model& model, const Layout& layout);
// Returns whether all entities are of one size.
bool IsOfOneDegree(const Layout& layout);

// A quick estimate; of many layouts Estimator's (estimate.h) is quicker.
double EstimateSeconds(const Cluster& cluster, const Costs& costs, const Job& job,
                       const Layout& layout);

// Simulates the layout. The error says which device lacks how much memory. What goes from one site
// to another shares a link in send order, one message at a time at full bandwidth (together.h);
// replicas that use one trunk share it evenly, and within a replica messages over a trunk wait for
// each other. Gradients are summed as gradient_sync.h says, from the moment on at which all holders
// of a layer are done with it; then sites exchange commit votes (commit.h).
absl::StatusOr<Outcome> EvaluateLayout(const Cluster& cluster, const Costs& costs, const Job& job,
                                       const Layout& layout, const Evaluation& evaluation);

// The same with the savings that give the shortest step: those for as many micro-batches in flight
// as 1F1B has, for half as many, and for one. Sets them.
absl::StatusOr<Outcome> EvaluateSaving(const Cluster& cluster, const Costs& costs, const Job& job,
                                       const Evaluation& evaluation, Layout& layout);

std::set<int> ListUsedDevices(const Layout& layout);

// Returns whether some stage saves memory.
bool SavesMemory(const Layout& layout);

}  // namespace atl::plan

#endif  // ATOLL_COORDINATOR_PLANNER_LAYOUT_H_
