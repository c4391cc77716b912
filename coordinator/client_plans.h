// What the planner answers to clients: previews of plans, and predictions beside traced steps.
// Loop's thread only.

#ifndef ATOLL_COORDINATOR_CLIENT_PLANS_H_
#define ATOLL_COORDINATOR_CLIENT_PLANS_H_

#include "coordinator/loop.h"
#include "coordinator/preview.h"

namespace atl {

namespace v1 {
class PreviewReply;
class PreviewRequest;
class SubmitRequest;
class TraceReply;
}  // namespace v1

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

#endif  // ATOLL_COORDINATOR_CLIENT_PLANS_H_
