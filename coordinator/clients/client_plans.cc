#include "absl/strings/str_cat.h"
#include "common/protocol/trace_limit.h"
#include "common/protocol/wire.h"
#include "common/status.h"
#include "coordinator/clients/client_answers.h"
#include "coordinator/measurements/live_profile.h"
#include "coordinator/plan_io/plan_message.h"
#include "coordinator/planning/predicted_step.h"

namespace atl {
namespace {

constexpr int kPreviewDefaultMs = 60'000;
// The limit of a preview, as long as islands wait for theirs: the best plan by then is taken.
constexpr Duration kPreviewLimit = std::chrono::seconds(20);

// One simulation of a step: milliseconds for hundreds of devices.
absl::StatusOr<StepTrace> Predict(CoordinatorLoop& loop, const TracedStep& step) {
  const IslandPlan plan = loop.core().Plan(step.job.summary.job, step.island);
  if (step.measured.plan_number == 0) {
    return absl::NotFoundError("the island has no plan: its worker trains as it sees fit");
  }
  if (plan.number != step.measured.plan_number) {
    return absl::NotFoundError(absl::StrCat("plan ", step.measured.plan_number,
                                            " was replaced while its step was traced"));
  }
  std::optional<PlanRequest> request =
      loop.planner().MadeFrom(step.job.summary.job, step.island, plan);
  const bool again = !request;
  if (again) {
    request = RequestFor(step.job, plan, loop.core().Members(SteadyNow()), loop.measurements());
  }
  ATOLL_ASSIGN_OR_RETURN(StepTrace trace, PredictStep(*request, plan));
  LimitEntries(kTraceEntriesMax, &trace);
  if (again) absl::StrAppend(&trace.about, "; as known now, not when the plan was made");
  return trace;
}

}  // namespace

absl::StatusOr<JobSpec> GoodSpec(const v1::SubmitRequest& request) {
  v1::JobSpec wire = request.spec();
  ATOLL_ASSIGN_OR_RETURN(JobSpec spec, Decode(&wire));
  ATOLL_RETURN_IF_ERROR(Validate(spec));
  if (!spec.layout.plan.empty()) {
    ATOLL_ASSIGN_OR_RETURN(spec.layout.plan, PinnedJson(spec.layout.plan, "layout.plan"));
  }
  return spec;
}

absl::Status RequestPreview(Instant now, CoordinatorLoop& loop, const v1::PreviewRequest& request,
                            OnPreview on_done) {
  const int requested_ms = request.timeout_ms() == 0 ? kPreviewDefaultMs : request.timeout_ms();
  const Duration limit = std::min<Duration>(
      kPreviewLimit, std::chrono::milliseconds(std::clamp(requested_ms, 1000, kTraceLongestMs)));
  if (!request.has_spec()) {
    const std::optional<JobState> state = loop.core().FindState(request.job());
    if (!state) return NoSuchJob(request.job());
    const std::vector<MakePlan> queries = loop.core().PlanRequests(request.job());
    if (queries.empty()) {
      return absl::FailedPreconditionError(absl::StrCat(
          request.job(), " is ", Name(*state),
          ": none of its islands is of several devices, which alone have plans; see atoll show"));
    }
    QueryPreview(now, loop.planner(), queries, limit, std::move(on_done));
    return absl::OkStatus();
  }
  GroupWorkers query;
  v1::SubmitRequest submitted;
  *submitted.mutable_spec() = request.spec();
  ATOLL_ASSIGN_OR_RETURN(query.spec, GoodSpec(submitted));
  v1::JobDefinition wire;
  *wire.mutable_spec() = request.spec();
  *wire.mutable_facts() = request.facts();
  ATOLL_ASSIGN_OR_RETURN(JobDefinition definition, Decode(&wire));
  query.facts = std::move(definition.facts);
  query.members = loop.core().IdleWorkers(query.spec.layout);
  if (query.members.empty()) {
    const bool leaves_out = !query.spec.layout.exclude.empty() || !query.spec.layout.sites.empty();
    return absl::FailedPreconditionError(
        absl::StrCat("no idle worker is attached",
                     leaves_out ? " that layout.exclude and layout.sites do not leave out" : "",
                     ": a job that is submitted now would wait for one (atoll status)"));
  }
  QueryPreview(now, loop.planner(), query, limit, std::move(on_done));
  return absl::OkStatus();
}

void FillPreview(const CoordinatorLoop& loop, const Preview& preview, v1::PreviewReply* reply) {
  reply->set_job(preview.job);
  reply->set_grouping(preview.grouping);
  for (const PreviewedPlan& plan : preview.plans) {
    v1::PreviewedIsland* island = reply->add_islands();
    const PlanMade& made = plan.made;
    island->set_island(made.island);
    if (made.plan.ok()) {
      EncodePlan(*made.plan, island->mutable_plan());
      island->set_kept(loop.core().WhyPlanIsKept(made));
    } else {
      island->set_trouble(std::string(made.plan.status().message()));
    }
    island->set_current_number(plan.current_number);
    island->set_current_step_ns(made.current_step_ns);
    for (const auto& [worker, why] : made.left_out) {
      island->add_left_out(absl::StrCat(worker, ": ", why));
    }
    for (const std::string& device : plan.idle_devices) island->add_idle_devices(device);
  }
}

void FillTrace(CoordinatorLoop& loop, TracedStep step, v1::TraceReply* reply) {
  reply->set_job(step.job.summary.job);
  reply->set_island(step.island);
  reply->set_leader(step.leader);
  reply->set_generation(step.generation);
  // It was received, so that it can be sent.
  ATOLL_CHECK(Encode(step.measured, reply->mutable_measured()).ok());
  const absl::StatusOr<StepTrace> predicted = Predict(loop, step);
  absl::Status status = predicted.status();
  if (status.ok()) status = Encode(*predicted, reply->mutable_predicted());
  if (status.ok()) return;
  reply->clear_predicted();
  reply->set_no_prediction(std::string(status.message()));
}

}  // namespace atl
