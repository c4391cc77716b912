// Helpers for tests of islands that several workers share.

#ifndef ATOLL_COORDINATOR_CORE_TESTING_SHARED_FIXTURE_H_
#define ATOLL_COORDINATOR_CORE_TESTING_SHARED_FIXTURE_H_

#include <algorithm>
#include <string>

#include "coordinator/core/testing/world.h"

namespace atl::testing {

// Three workers, one island, up to version 0 pulled.
inline void StartShared(World& world, const std::string& submit = "") {
  world.DoLines({"server ps-0 attaches", "worker a attaches", "worker b attaches",
                 "worker c attaches",
                 "submit min=1 batch=2 tokens=4000 island=all per-island=3 " + submit,
                 "worker a prepared", "worker b prepared", "worker c prepared", "servers answer",
                 "worker b follows", "worker c follows", "worker a sets-up", "worker a pushes",
                 "worker a stages", "servers answer", "worker a ready"});
}

struct SharedWorld : World {
  explicit SharedWorld(const std::string& submit = "") { StartShared(*this, submit); }
};

// The members with a part in the plan, then, in brackets, those that are only sources.
inline std::string Members(const IslandPlan& plan) {
  std::string names, sources;
  for (const IslandMember& member : plan.members) {
    const bool part = std::any_of(plan.replicas.begin(), plan.replicas.end(), [&](const auto& r) {
      return std::any_of(r.stages.begin(), r.stages.end(), [&](const PlanStage& stage) {
        return std::any_of(stage.devices.begin(), stage.devices.end(), [&](const auto& device) {
          return WorkerFromDevice(device) == member.worker;
        });
      });
    });
    (part ? names : sources) += member.worker;
  }
  return sources.empty() ? names : names + "(" + sources + ")";
}

// Returns whether two of its workers got the same plan.
inline bool SamePlan(const IslandPlan& a, const IslandPlan& b) {
  return KeepWorkerPrograms(a, "") == KeepWorkerPrograms(b, "");
}

inline bool HasText(const std::string& text, const std::string& what) {
  return text.find(what) != std::string::npos;
}

}  // namespace atl::testing

#endif  // ATOLL_COORDINATOR_CORE_TESTING_SHARED_FIXTURE_H_
