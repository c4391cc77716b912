#include "coordinator/planning/objective.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/number_text.h"
#include "coordinator/plan_io/island_plan_conversion.h"
#include "coordinator/planner/cluster/objective.h"

namespace atl {
namespace {

// No step takes less and no limit is smaller: how often a layout misses one is a number.
constexpr double kLeastLimit = 1e-30;

double CountSamples(const JobSpec& spec) {
  return static_cast<double>(spec.schedule.train_tokens) /
         static_cast<double>(spec.data.sequence_length);
}

}  // namespace

plan::Objective MakeObjective(const JobSpec& spec, int islands) {
  const LayoutSpec& layout = spec.layout;
  plan::Objective objective{.cheapest = layout.objective == PlanObjective::kCost};
  const double steps = CountSamples(spec) / static_cast<double>(spec.inner.batch_sequences);
  if (layout.deadline_hours > 0) {
    objective.step_s_max = std::max(kLeastLimit, 3600 * layout.deadline_hours * islands / steps);
  }
  if (layout.budget > 0) objective.price_max = std::max(kLeastLimit, layout.budget / steps);
  return objective;
}

double EstimateTrainingHours(const JobSpec& spec, const TrainingRate& rate) {
  return CountSamples(spec) * rate.seconds_per_sample / 3600;
}

double ComputePrice(const JobSpec& spec, const TrainingRate& rate) {
  return CountSamples(spec) * rate.price_per_sample;
}

absl::Status CheckLimits(const JobSpec& spec, const TrainingRate& rate) {
  const LayoutSpec& layout = spec.layout;
  const double hours = EstimateTrainingHours(spec, rate);
  if (layout.deadline_hours > 0 && hours > layout.deadline_hours) {
    return absl::FailedPreconditionError(absl::StrFormat(
        "layout.deadline_hours = %s: the best plan found needs %s hours for %d tokens; raise "
        "it, add devices, or lower schedule.train_tokens%s",
        NumberText(layout.deadline_hours), NumberText(hours), spec.schedule.train_tokens,
        layout.budget > 0 ? ", or raise layout.budget" : ""));
  }
  const double price = ComputePrice(spec, rate);
  if (layout.budget > 0 && price > layout.budget) {
    return absl::FailedPreconditionError(absl::StrFormat(
        "layout.budget = %s: the best plan found costs %s for %d tokens; raise it, add cheaper "
        "devices, or lower schedule.train_tokens%s",
        NumberText(layout.budget), NumberText(price), spec.schedule.train_tokens,
        layout.deadline_hours > 0 ? ", or raise layout.deadline_hours" : ""));
  }
  return absl::OkStatus();
}

absl::Status CheckPrices(const JobSpec& spec, const plan::Cluster& cluster) {
  const bool needs_prices = spec.layout.objective == PlanObjective::kCost || spec.layout.budget > 0;
  if (!needs_prices || cluster.HasPrices()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      spec.layout.budget > 0 ? "layout.budget" : "layout.objective = \"cost\"",
      ": no device has a price: start workers with --price-per-hour, or give price_per_hour in the "
      "cluster file"));
}

std::string TotalsText(const JobSpec& spec, const TrainingRate& rate) {
  std::string text = SecondsText(3600 * EstimateTrainingHours(spec, rate));
  if (rate.price_per_sample > 0) {
    absl::StrAppend(&text, " and a price of ", NumberText(ComputePrice(spec, rate)));
  }
  return absl::StrCat(text, " for ", spec.schedule.train_tokens, " tokens");
}

RatedPlan Rate(const PlanRequest& request, const PlanningInput& input, const IslandPlan& island,
               double step_s) {
  // Nothing where a device is no longer offered.
  const plan::Layout layout =
      LayoutFromIslandPlan(input.cluster, input.costs, island).value_or(plan::Layout());
  const plan::StepPrice price = plan::ComputePrice(input.cluster, input.costs, layout);
  const auto batch = static_cast<double>(request.spec.inner.batch_sequences);
  return {plan::Rank(input.job.objective, price, step_s),
          {step_s / batch / request.islands, price.Of(step_s) / batch}};
}

}  // namespace atl
