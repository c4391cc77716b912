// What clients see of the core: its views, with what the wall clock, the history and the watch of
// progress add, as messages. Loop's thread only.

#ifndef ATOLL_COORDINATOR_CLIENT_VIEWS_H_
#define ATOLL_COORDINATOR_CLIENT_VIEWS_H_

#include "absl/status/status.h"
#include "coordinator/loop.h"

namespace atl {

namespace v1 {
class ClusterProfile;
class ClusterStatus;
class Job;
class JobSummary;
class ProfileRequest;
}  // namespace v1

absl::Status NoSuchJob(const JobId& job);

// Adds what the wall clock says of a job.
void AddTimes(const CoordinatorLoop& loop, JobSummary& view);
// Fills `wire` if there is such a job.
void EncodeSummary(const CoordinatorLoop& loop, const JobId& job, v1::JobSummary* wire);
void EncodeJob(Instant now, const CoordinatorLoop& loop, JobView view, v1::Job* wire);
// All but up_s. Of jobs those that have not ended, each with its newest decision.
void EncodeCluster(Instant now, const CoordinatorLoop& loop, v1::ClusterStatus* status);
absl::Status EncodeProfile(Instant now, const CoordinatorLoop& loop,
                           const v1::ProfileRequest& request, v1::ClusterProfile* reply);

}  // namespace atl

#endif  // ATOLL_COORDINATOR_CLIENT_VIEWS_H_
