// Answers to clients: views of the core with what the wall clock, the history and the watch of
// progress add; the log; what the planner finds for previews and beside traced steps. Loop's
// thread only.

#ifndef ATOLL_COORDINATOR_CLIENTS_CLIENT_ANSWERS_H_
#define ATOLL_COORDINATOR_CLIENTS_CLIENT_ANSWERS_H_

#include "coordinator/loop.h"
#include "coordinator/preview.h"
#include "coordinator/watchers.h"
#include "proto/coordinator.pb.h"

namespace atl {

// ------------------------------------------------------------------- views: client_views.cc ----

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

// ----------------------------------------------------------------------- log: client_log.cc ----

// Sends the log to one client, page by page, and what follows if it wants to.
class LogReading {
 public:
  explicit LogReading(const v1::LogsRequest& request);
  // Sends the next lines, or ends the stream when there is nothing more to wait for.
  void SendPage(Instant now, CoordinatorLoop& loop, WatchStream<v1::LogLine>& stream);

 private:
  LogQuery query_;
  int64_t tail_;  // to be found yet
  const bool follow_;
  Instant idle_until_{};
};

// ------------------------------------------------------------------- plans: client_plans.cc ----

inline constexpr int kTraceLongestMs = 300'000;

// The caller's specification with all defaults, if it is good.
absl::StatusOr<JobSpec> GoodSpec(const v1::SubmitRequest& request);

// Calls `on_done` once, on any thread, unless it returns an error.
absl::Status RequestPreview(Instant now, CoordinatorLoop& loop, const v1::PreviewRequest& request,
                            OnPreview on_done);
void FillPreview(const CoordinatorLoop& loop, const Preview& preview, v1::PreviewReply* reply);

// With the step as the plan predicts it, or why there is no prediction.
void FillTrace(CoordinatorLoop& loop, TracedStep step, v1::TraceReply* reply);

}  // namespace atl

#endif  // ATOLL_COORDINATOR_CLIENTS_CLIENT_ANSWERS_H_
