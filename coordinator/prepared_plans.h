// Plans for the loss of one or two of an island's workers, made in idle time, so that the others
// go on at once when it happens.
//
// A loss is identified by the remaining workers and the leader among them. A lost leader's
// successor is the first one left, as in the core. A prepared plan is what PlanIsland made of the
// same request, or of one like it, with the measurements of that time; a present search may find a
// better one.
//
// Pure. Not thread-safe.

#ifndef ATOLL_COORDINATOR_PREPARED_PLANS_H_
#define ATOLL_COORDINATOR_PREPARED_PLANS_H_

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "common/ids.h"
#include "common/protocol/island_plan.h"
#include "coordinator/planning/request.h"

namespace atl {

class PreparedPlans {
 public:
  using Island = std::pair<JobId, IslandId>;
  struct Case {
    Island island;
    std::vector<size_t> lost;  // members of the island's request
    PlanRequest request;       // of those that would be left
  };

  // The island has a plan, which runs on these replicas and was made from this request: its losses
  // are to be prepared, first each of one worker, then of two. What was prepared of it before is
  // forgotten.
  void Begin(const Island& island, std::shared_ptr<const PlanRequest> request,
             std::vector<PlanReplica> replicas);
  // The next loss to prepare; none: all are.
  std::optional<Case> Next();
  // It was interrupted, and is the next one again.
  void PutBack(const Case& interrupted);
  // Keeps the plan that was found for the case. Plans beyond kOperationsMax are forgotten, the
  // oldest first.
  void Add(const Case& made, IslandPlan plan);
  // The plan for the request's workers with its number, if one was prepared for this very job. It
  // is handed out once: an island for which it was no good gets another one.
  std::optional<IslandPlan> Take(const Island& island, const PlanRequest& request);

  size_t size() const { return plans_.size(); }
  bool idle() const { return cases_.empty(); }

  static constexpr size_t kCasesMax = 128;  // of an island
  static constexpr size_t kIslandsMax = 64;
  static constexpr int64_t kOperationsMax = 4'000'000;  // of all plans that are kept

 private:
  struct Prepared {
    Island island;
    JobSpec spec;
    JobFacts facts;
    std::vector<PlanMember> members;  // without times
    IslandPlan plan;
    int64_t operations = 0;
  };
  struct Loss {
    Island island;
    std::vector<size_t> lost;
  };

  void Forget(const Island& island);

  // Requests of a large island hold a megabyte of links, so they are shared.
  struct Planned {
    std::shared_ptr<const PlanRequest> request;
    std::vector<PlanReplica> replicas;
  };
  std::map<Island, Planned> planned_;
  std::deque<Loss> cases_;  // to be prepared
  std::deque<Prepared> plans_;
  int64_t operations_ = 0;
};

}  // namespace atl

#endif  // ATOLL_COORDINATOR_PREPARED_PLANS_H_
