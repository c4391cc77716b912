// The request from which a plan of an island is made: the job, what its operator fixed, workers
// with what was measured of them, links. Filled from live measurements (coordinator/measurements/)
// or by tests.

#ifndef ATOLL_COORDINATOR_PLANNING_REQUEST_H_
#define ATOLL_COORDINATOR_PLANNING_REQUEST_H_

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "common/model/stash.h"
#include "common/protocol/control.h"
#include "common/protocol/device_profile.h"
#include "common/protocol/island_plan.h"
#include "coordinator/planner/planner.h"

namespace atl {

// A worker that the island may use, and what is known of it.
struct PlanMember {
  IslandMember member;
  std::string site;                     // empty: found from the links; without any: one site
  std::vector<DeviceInfo> devices;      // device i is "worker/i"; memory is each device's own
  std::vector<DeviceProfile> profiles;  // of some, all or none of its devices, and of this model
};

// Two workers that have no connection, in one direction at least.
struct UnreachablePair {
  NodeId from;
  NodeId to;
  std::string reason;
};

// Returns the number of threads that a search has work for, and the machine has.
int SearchThreads();

struct PlanRequest {
  JobSpec spec;  // spec.layout: what the operator fixed; the rest is the planner's to choose
  JobFacts facts;
  std::vector<PlanMember> members;           // the first one leads, and always takes part
  std::vector<LinkProfile> links;            // measured; pairs without one get a stated assumption
  std::vector<UnreachablePair> unreachable;  // see ExcludeUnreachable
  int64_t number = 1;                        // of the plan; 1: the island's first
  int islands = 1;                           // that share the job's tokens
  std::vector<PlanReplica> ran = {};  // of the island's plan that ran last: where its state is
  // Set where links have limits: the share of the model on the parameter servers of each site
  // (empty: it is not known, and rounds do not count), and the job's islands that are led from this
  // one's site.
  std::map<std::string, double> servers = {};
  int islands_at_site = 1;
  uint64_t seed = 1;
  int threads = 1;  // that search; no plan depends on it
  // Polled between candidates by any of them; true ends the search with what is best by then.
  std::function<bool()> stop;
  // Polled between rounds of more improvements after a search; null: there are none.
  std::function<bool()> enough = nullptr;
  std::optional<int>
      improvements;  // small changes to try on the winner; none: the planner's number
  std::string plan_name = "layout.plan";  // where spec.layout.plan is from, for messages
};

// The request for some of its workers, in this order.
PlanRequest OnlyMembers(const PlanRequest& all, const std::vector<size_t>& members);

// The first layer is the embedding, the last one the head.
LayerKind GetLayerKind(size_t layer, size_t layers);

// The planner's view of a request.
struct PlanningInput {
  plan::Cluster cluster;  // device ids as in IslandPlan
  plan::Costs costs;
  plan::Job job;
  plan::ProfileTable table;  // what `costs` has measured times from
  int64_t head_groups = 0;   // of the model, distributed to devices that share layers
  std::string assumptions;   // what was not measured, in words; empty: nothing
};

// Converts a job's specification to the search's requirements: batch, sizes of micro-batches that
// divide it, tensor-parallel degrees that the model's shape allows, what [layout] fixes. The error
// names the field that is impossible.
absl::StatusOr<plan::Job> ToPlanJob(const JobSpec& spec, const ModelSpec& shape);
// Heads that go as one unit to the devices that share a layer.
int64_t HeadGroups(const ModelSpec& shape);
// Memory as the runtime takes it. `full_precision`: all is fp32, as on CPUs.
plan::CostOptions MakeCostOptions(const JobSpec& spec, bool full_precision);

// Returns the bytes of elements of an island's activations and state. All of its devices compute in
// one type.
ElementBytes GetElementBytes(const PlanRequest& request);

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
