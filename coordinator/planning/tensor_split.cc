#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/number_text.h"
#include "common/status.h"
#include "coordinator/planning/plan_changes.h"

namespace atl {
namespace {

constexpr int64_t kMostHeads = 4096;  // distributed one by one

// Returns the time of one device that does all by itself.
double SecondsAlone(const PlanningInput& input, int device, int micro_batch) {
  const plan::DeviceType& type = input.cluster.types[input.cluster.devices[device].type];
  const plan::StageCosts all = input.costs.For(type, 1, micro_batch);
  return all.TotalSeconds(0, all.layers());
}

// Every group's slower devices at the ranks with smaller parts.
void Order(const PlanningInput& input, const std::vector<int>& ratios, plan::Layout& layout) {
  std::vector<size_t> ranks(ratios.size());
  std::iota(ranks.begin(), ranks.end(), size_t{0});
  std::ranges::stable_sort(ranks, [&](size_t a, size_t b) { return ratios[a] < ratios[b]; });
  for (plan::Replica& replica : layout.replicas) {
    for (plan::Stage& stage : replica.stages) {
      std::vector<std::pair<double, int>> devices;
      for (const int d : stage.devices) {
        devices.emplace_back(-SecondsAlone(input, d, layout.micro_batch), d);
      }
      std::ranges::sort(devices);
      for (size_t i = 0; i < ranks.size(); ++i) stage.devices[ranks[i]] = devices[i].second;
    }
  }
}

// Heads for each of these types, slowest first: each head goes to the device that it slows least.
std::vector<int> BySpeed(const PlanningInput& input, const std::vector<plan::DeviceType>& types,
                         int micro_batch) {
  const auto heads = static_cast<int>(std::min(input.costs.model().head_groups, kMostHeads));
  std::vector<int> counts(types.size(), 1);
  std::vector<double> next;  // seconds with one more
  const auto with_one_more = [&](size_t rank) {
    return input.costs.RankSeconds(types, rank, (counts[rank] + 1.0) / heads, micro_batch);
  };
  for (size_t rank = 0; rank < types.size(); ++rank) next.push_back(with_one_more(rank));
  for (int assigned = static_cast<int>(types.size()); assigned < heads; ++assigned) {
    // The last of equal ones is taken: it is no slower.
    const auto least = std::min_element(next.rbegin(), next.rend());
    const size_t rank = types.size() - 1 - static_cast<size_t>(least - next.rbegin());
    ++counts[rank];
    next[rank] = with_one_more(rank);
  }
  int common = 0;
  for (const int count : counts) common = std::gcd(common, count);
  for (int& count : counts) count /= common;
  return counts;
}

// Returns the ratios that groups of unlike devices would like, each kind of group once.
std::set<std::vector<int>> Offers(const PlanningInput& input, const plan::Layout& layout) {
  std::set<std::vector<int>> offers;
  if (input.costs.model().head_groups < layout.tensor_parallel) return offers;
  std::set<std::vector<int>> seen;
  for (const plan::Replica& replica : layout.replicas) {
    for (const plan::Stage& stage : replica.stages) {
      std::vector<std::pair<double, int>> members;
      for (const int d : stage.devices) {
        members.emplace_back(-SecondsAlone(input, d, layout.micro_batch),
                             input.cluster.devices[d].type);
      }
      std::ranges::sort(members);
      std::vector<int> kinds;
      for (const auto& [seconds, type] : members) kinds.push_back(type);
      if (kinds.front() == kinds.back() || !seen.insert(kinds).second) continue;
      std::vector<plan::DeviceType> types;
      for (const int kind : kinds) types.push_back(input.cluster.types[kind]);
      std::vector<int> ratios = BySpeed(input, types, layout.micro_batch);
      if (ratios.front() != ratios.back()) offers.insert(std::move(ratios));
    }
  }
  return offers;
}

// The layout with these split ratios, with the cuts that it has or better ones.
absl::StatusOr<plan::Plan> BuildPlanWithRatios(const PlanRequest& request,
                                               const PlanningInput& input, const plan::Plan& plan,
                                               const std::vector<int>& ratios) {
  plan::Layout same = plan.layout;
  Order(input, ratios, same);
  same.tensor_split_ratios = ratios;
  std::vector<plan::Layout> layouts = {same};
  if (same.shape == plan::Shape::kPlain) {
    plan::Layout cut = same;
    bool all = true;
    for (plan::Replica& replica : cut.replicas) {
      const size_t stages = replica.stages.size();
      all = all &&
            plan::CutReplica(input.cluster, input.costs.ForReplicas(cut.replicas.size()),
                             cut.micro_batch, replica, {.tensor_split_ratios = ratios})
                .ok() &&
            replica.stages.size() == stages;
    }
    if (all) layouts.push_back(std::move(cut));
  }
  absl::Status why_not = absl::OkStatus();
  plan::Plan best = plan;
  best.outcome.step_s = INFINITY;
  for (plan::Layout& layout : layouts) {
    auto outcome = plan::EvaluateSaving(input.cluster, input.costs, input.job,
                                        {.restarts = 96, .seed = request.seed}, layout);
    if (!outcome.ok()) {
      why_not = outcome.status();
    } else if (outcome->step_s < best.outcome.step_s) {
      best.outcome = *std::move(outcome);
      best.layout = std::move(layout);
    }
  }
  if (std::isinf(best.outcome.step_s)) return why_not;
  return best;
}

}  // namespace

absl::Status ShareUnevenly(const PlanRequest& request, const PlanningInput& input,
                           plan::Plan& plan) {
  if (plan.layout.tensor_parallel < 2 || !plan::IsOfOneDegree(plan.layout)) {
    return absl::OkStatus();
  }
  const std::vector<int64_t>& fixed_ratios = request.spec.layout.tensor_split_ratios;
  if (!fixed_ratios.empty()) {
    auto shared =
        BuildPlanWithRatios(request, input, plan, {fixed_ratios.begin(), fixed_ratios.end()});
    if (!shared.ok()) return Annotate(shared.status(), "layout.tensor_split_ratios");
    plan = *std::move(shared);
    absl::StrAppend(&plan.reason, "; layers shared ", absl::StrJoin(fixed_ratios, ":"),
                    ", as the job requests");
    return absl::OkStatus();
  }
  const double evenly_s = plan.outcome.step_s;
  for (const std::vector<int>& ratios : Offers(input, plan.layout)) {
    if (request.stop && request.stop()) break;
    auto uneven = BuildPlanWithRatios(request, input, plan, ratios);
    if (uneven.ok() && uneven->outcome.step_s < plan.outcome.step_s) plan = *std::move(uneven);
  }
  if (!plan.layout.tensor_split_ratios.empty()) {
    absl::StrAppendFormat(&plan.reason,
                          "; layers shared %s by measured speed: %s a step, evenly %s",
                          absl::StrJoin(plan.layout.tensor_split_ratios, ":"),
                          SecondsText(plan.outcome.step_s), SecondsText(evenly_s));
  }
  return absl::OkStatus();
}

}  // namespace atl
