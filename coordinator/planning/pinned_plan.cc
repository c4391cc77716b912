#include <string>

#include "absl/strings/str_cat.h"
#include "common/status.h"
#include "coordinator/plan_io/plan_message.h"
#include "coordinator/planning/plan_changes.h"

namespace atl {
namespace {

constexpr int kRestarts = 128;

absl::Status CheckBatch(const PlanRequest& request, const plan::Layout& layout) {
  int64_t sequences = 0;
  for (const plan::Replica& replica : layout.replicas) {
    sequences += int64_t{replica.micro_batches} * layout.micro_batch;
  }
  if (sequences == request.spec.inner.batch_sequences) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(request.plan_name, ": its micro-batches are ",
                                                 sequences, " sequences a step, and the batch has ",
                                                 request.spec.inner.batch_sequences,
                                                 " (inner.batch_sequences): change one of them"));
}

const char* OrderText(const std::string& schedule, bool ordered) {
  if (ordered) return "its operations run in the order of its programs";
  return schedule.empty() ? "it has no programs, and its operations are put in order anew"
                          : "its operations are put in order by layout.schedule";
}

}  // namespace

absl::StatusOr<plan::Plan> PinnedPlan(const PlanRequest& request, PlanningInput& input) {
  const LayoutSpec& fixed = request.spec.layout;
  const std::string& key = request.plan_name;
  const std::string& leader = input.cluster.leader;
  plan::Plan plan;
  ATOLL_ASSIGN_OR_RETURN(PinnedLayout pinned,
                         ParsePinnedJson(fixed.plan, key, input.cluster, input.costs, leader,
                                         /*with_orders=*/fixed.schedule.empty()));
  plan.layout = std::move(pinned.layout);
  plan::Layout& layout = plan.layout;
  if (!plan::UsesLeader(input.cluster, layout)) {
    return absl::FailedPreconditionError(
        absl::StrCat(key, ": worker ", leader, " leads the island and has no stage in it"));
  }
  ATOLL_RETURN_IF_ERROR(CheckBatch(request, layout));
  ATOLL_RETURN_IF_ERROR(plan::CheckBytes(input.costs.model(), request.spec.inner.batch_sequences));
  if (plan::SavesMemory(layout)) {
    if (fixed.recompute == Recompute::kNone) {
      return absl::InvalidArgumentError(
          absl::StrCat(key, " has recomputed_layers, and layout.recompute = \"none\""));
    }
    if (fixed.recompute == Recompute::kAuto) input = WithRecomputation(std::move(input));
  }
  if (!fixed.schedule.empty()) {
    ATOLL_RETURN_IF_ERROR(
        Annotate(plan::SetSchedule(input.cluster, input.costs, fixed.schedule, layout), key));
  }
  plan::Evaluation evaluation{.restarts = kRestarts, .seed = request.seed};
  if (!pinned.orders.empty()) evaluation.orders = &pinned.orders;
  absl::StatusOr<plan::Outcome> outcome =
      plan::EvaluateLayout(input.cluster, input.costs, input.job, layout, evaluation);
  if (!outcome.ok()) return Annotate(outcome.status(), key);
  plan.outcome = *std::move(outcome);
  plan.candidates = plan.simulated = 1;
  plan.seed = request.seed;
  plan.cluster_bound_s = plan::ClusterBoundSeconds(input.cluster, input.costs, input.job);
  plan.times_from = plan::TimesFrom(input.cluster, input.costs, layout);
  plan.reason =
      absl::StrCat("as ", key, " says; ", OrderText(fixed.schedule, !pinned.orders.empty()));
  return plan;
}

}  // namespace atl
