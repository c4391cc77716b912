// One way to lay a job out over a cluster.
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
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "coordinator/planner/cluster/cluster.h"
#include "coordinator/planner/cluster/costs.h"

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

inline constexpr double kGradientBytes = 4;  // of a parameter, as sent

struct Job {
  int global_batch = 1;              // samples per step
  std::vector<int> micro_batches;    // sizes to try; empty: 1, 2, 4, 8
  std::vector<int> tensor_parallel;  // sizes to try; empty: 1, 2, 4, 8
  Constraints fixed;
  Objective objective;
  // How devices are mapped to the stages of a pipeline: by refine.h and SpanTrain's order of groups
  // alone, or then by branch and bound (stage_mapping.h).
  PlanSearch search = PlanSearch::kBranchAndBound;
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
// one. None at all unless costs say kAuto.
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
// Returns whether every replica holds all layers in their order, and no device is in two replicas.
bool IsWhole(const Model& model, const Layout& layout);
// Returns whether all entities are of one size.
bool IsOfOneDegree(const Layout& layout);

// A quick estimate; of many layouts Estimator's (groups/estimate.h) is quicker.
double EstimateSeconds(const Cluster& cluster, const Costs& costs, const Layout& layout);

std::set<int> ListUsedDevices(const Layout& layout);

// Returns whether some stage saves memory.
bool SavesMemory(const Layout& layout);

}  // namespace atl::plan

#endif  // ATOLL_COORDINATOR_PLANNER_LAYOUT_H_
