// From a request (common/protocol/plan_request.h) to the search's view of it.

#ifndef ATOLL_COORDINATOR_PLANNING_REQUEST_H_
#define ATOLL_COORDINATOR_PLANNING_REQUEST_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "common/model/config.h"
#include "common/model/stash.h"
#include "common/protocol/control.h"
#include "common/protocol/plan_request.h"
#include "coordinator/planner/planner.h"

namespace atl {

// Returns the number of threads that a search has work for, and the machine has.
int SearchThreads();

// The request for some of its workers, in this order.
PlanRequest OnlyMembers(const PlanRequest& all, const std::vector<size_t>& members);

// The first layer is the embedding, the last one the head.
LayerKind GetLayerKind(size_t layer, size_t layers);

// The planner's view of a request.
struct PlanningInput {
  plan::Cluster cluster;  // device ids as in IslandPlan
  plan::Costs costs;
  plan::Job job;
  std::string assumptions;  // what was not measured, in words; empty: nothing
};

// Makes the model of sequences of so many tokens (of images, one each) in the planner's words: what
// its layers compute, keep and send, by the law that workers take memory by
// (common/model/stage_memory.h). REQUIRES: config is valid.
plan::Model PlannerModel(const std::string& name, const ModelConfig& config,
                         int64_t sequence_length, const ElementBytes& element);

// Converts a job's specification to the search's requirements: batch, sizes of micro-batches that
// divide it, tensor-parallel degrees that the model's shape allows, what [layout] fixes. The error
// names the field that is impossible. `islands` of the job share its tokens evenly.
absl::StatusOr<plan::Job> ToPlanJob(const JobSpec& spec, const ModelSpec& shape, int islands = 1);
// Memory as the runtime takes it. `full_precision`: all is fp32, as on CPUs.
plan::CostOptions MakeCostOptions(const JobSpec& spec, bool full_precision);

// Returns the bytes of elements of an island's activations and state. All of its devices compute in
// one type.
ElementBytes GetElementBytes(const PlanRequest& request);

// Elements of described devices, which are taken to be GPUs.
inline constexpr ElementBytes kAssumedElement{2, 4};
// Returns what a job and its model say: everything but the devices, with times by the roofline.
absl::StatusOr<PlanningInput> MakeJobInput(const JobSpec& spec, const ModelConfig& config,
                                           const ElementBytes& element = kAssumedElement,
                                           int islands = 1);
// Gives the input described devices. INVALID_ARGUMENT names what the job names and the cluster does
// not have, FAILED_PRECONDITION the constraint that leaves none of it.
absl::Status SetCluster(const JobSpec& spec, plan::Cluster cluster, PlanningInput& input);

// INVALID_ARGUMENT names the field of the job, the worker or the profile that is impossible.
absl::StatusOr<PlanningInput> MakePlanningInput(const PlanRequest& request);

// All members of an island communicate with each other: all-reduces of gradients and the commit of
// every step go among all of them. So of two members that cannot, one takes no part: takes out of
// the request the members that do not reach the leader, then the one that lacks most others (the
// later one among equals), until all that are left reach each other. Returns the names taken out
// and why.
std::vector<std::pair<NodeId, std::string>> ExcludeUnreachable(PlanRequest& request);

}  // namespace atl

#endif  // ATOLL_COORDINATOR_PLANNING_REQUEST_H_
