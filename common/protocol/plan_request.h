// Input of an island's plan: the job, what its operator fixed, workers with what was
// measured of them, links. The core fills in what it knows (MakePlan), measurements the rest
// (ProfileRegistry::FillIn); previews, benches and tests fill in all of it.

#ifndef ATOLL_COMMON_PROTOCOL_PLAN_REQUEST_H_
#define ATOLL_COMMON_PROTOCOL_PLAN_REQUEST_H_

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "common/protocol/control.h"
#include "common/protocol/device_profile.h"
#include "common/protocol/island_plan.h"
#include "common/protocol/job_spec.h"

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
  // Tokens that all islands' experts saw last, by mixture and expert; empty: unknown, or no
  // mixture.
  std::vector<int64_t> expert_tokens = {};
  // How the search is made; the core leaves it as it is.
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

}  // namespace atl

#endif  // ATOLL_COMMON_PROTOCOL_PLAN_REQUEST_H_
