// Measurements as the client services and `atoll plan --live` return them.

#ifndef ATOLL_COORDINATOR_MEASUREMENTS_LIVE_PROFILE_H_
#define ATOLL_COORDINATOR_MEASUREMENTS_LIVE_PROFILE_H_

#include <vector>

#include "absl/status/statusor.h"
#include "coordinator/core/views.h"
#include "coordinator/measurements/profile_registry.h"
#include "proto/cluster.pb.h"

namespace atl {

// The attached workers' devices by type and site, the times of `job`'s layers on them, and their
// links. Without a job, or before its workers have opened it: no times.
absl::StatusOr<v1::ClusterProfile> LiveProfile(Instant now, const std::vector<MemberView>& members,
                                               const JobView* job, const ProfileRegistry& registry);

// Makes a request for a plan whose request is lost (the coordinator was restarted) from present
// knowledge.
PlanRequest RequestFor(const JobView& job, const IslandPlan& plan,
                       const std::vector<MemberView>& members, const ProfileRegistry& registry);

}  // namespace atl

#endif  // ATOLL_COORDINATOR_MEASUREMENTS_LIVE_PROFILE_H_
