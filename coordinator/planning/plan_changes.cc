#include "coordinator/planning/plan_changes.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/bytes_text.h"
#include "common/number_text.h"
#include "common/protocol/program_slots.h"
#include "common/status.h"
#include "coordinator/plan_io/plan_message.h"
#include "coordinator/planning/plan_memory.h"

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
      plan::EvaluateLayout(input.cluster, input.costs, layout, evaluation);
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

// ---- recomputed blocks ----

namespace {

constexpr int kNamed = 3;  // stages in a reason

const PlanProgram& GetProgram(const IslandPlan& island, const std::string& device) {
  return *std::find_if(island.programs.begin(), island.programs.end(),
                       [&](const PlanProgram& program) { return program.device == device; });
}

// Finds the device of the stage that lacks most; nothing: none is measured.
std::optional<MemoryLack> FindWorstLack(const PlanRequest& request, const IslandPlan& island,
                                        const PlanStage& stage) {
  std::optional<MemoryLack> worst;
  for (const std::string& device : stage.devices) {
    const auto need = PredictProgramMemory(request, island, GetProgram(island, device));
    if (need && (!worst || need->lacks_bytes() > worst->lacks_bytes())) worst = need;
  }
  return worst;
}

// Returns the bytes that the devices of stage `s`, with their other stages, need by the search's
// account: each as if it had an even share.
int64_t SearchBytes(const PlanningInput& input, const plan::Layout& layout,
                    const IslandPlan& island, size_t r, size_t s) {
  const plan::Replica& replica = layout.replicas[r];
  const std::vector<int>& devices = replica.stages[s].devices;
  const plan::StageCosts costs =
      plan::GroupCosts(input.cluster, input.costs.ForReplicas(layout.replicas.size()),
                       layout.micro_batch, devices, layout.tensor_split_ratios);
  std::vector<int32_t> own;
  for (size_t other = 0; other < replica.stages.size(); ++other) {
    if (replica.stages[other].devices == devices) own.push_back(static_cast<int32_t>(other));
  }
  int64_t bytes = 0;
  for (const StageSlots& slots :
       ComputeStageSlots(GetProgram(island, island.replicas[r].stages[s].devices[0]), own)) {
    const plan::Stage& stage = replica.stages[static_cast<size_t>(slots.stage)];
    bytes += costs.StateBytes(stage.first_layer, stage.last_layer, stage.saving) +
             slots.forward * costs.StashBytes(stage.first_layer, stage.last_layer, stage.saving);
  }
  return bytes;
}

}  // namespace

PlanningInput WithRecomputation(PlanningInput input) {
  plan::CostOptions options = input.costs.options();
  options.recompute = Recompute::kAuto;
  input.costs = input.costs.With(options);
  return input;
}

void MakeRoom(const plan::Layout& layout, const IslandPlan& island, PlanningInput& input) {
  const std::vector<int>& ratios = layout.tensor_split_ratios;
  const double even = std::accumulate(ratios.begin(), ratios.end(), 0.0) / layout.tensor_parallel;
  for (size_t r = 0; r < layout.replicas.size(); ++r) {
    for (size_t s = 0; s < layout.replicas[r].stages.size(); ++s) {
      const auto bytes = static_cast<double>(SearchBytes(input, layout, island, r, s));
      const std::vector<int>& devices = layout.replicas[r].stages[s].devices;
      for (size_t rank = 0; rank < devices.size(); ++rank) {
        int64_t& has = input.cluster.types[input.cluster.devices[devices[rank]].type].memory_bytes;
        const double part = ratios.empty() ? 1 : ratios[rank] / even;
        const double wants = bytes * part / (1 - input.costs.options().reserve);
        has = std::max(has, static_cast<int64_t>(wants) + 2);
      }
    }
  }
}

bool Recomputes(const IslandPlan& island) {
  for (const PlanReplica& replica : island.replicas) {
    for (const PlanStage& stage : replica.stages) {
      if (!stage.recomputed_layers.empty()) return true;
    }
  }
  return false;
}

std::optional<plan::Plan> RecomputingLess(const PlanRequest& request, PlanningInput input,
                                          IslandPlan island, plan::Plan plan) {
  bool less = false;
  for (size_t r = 0; r < island.replicas.size(); ++r) {
    for (size_t s = 0; s < island.replicas[r].stages.size(); ++s) {
      PlanStage& stage = island.replicas[r].stages[s];
      int& recomputed = plan.layout.replicas[r].stages[s].saving.recomputed;
      while (recomputed > 0) {
        const int32_t last = stage.recomputed_layers.back();
        stage.recomputed_layers.pop_back();
        const std::optional<MemoryLack> worst = FindWorstLack(request, island, stage);
        if (!worst || worst->lacks_bytes() > 0) {
          stage.recomputed_layers.push_back(last);
          break;
        }
        --recomputed;
        less = true;
      }
    }
  }
  if (!less) return std::nullopt;
  MakeRoom(plan.layout, island, input);
  auto outcome = plan::EvaluateLayout(input.cluster, input.costs, plan.layout,
                                      {.restarts = 96, .seed = request.seed});
  if (!outcome.ok() || outcome->step_s > plan.outcome.step_s) return std::nullopt;
  plan.outcome = *std::move(outcome);
  return plan;
}

std::string WhatRecomputes(const PlanRequest& request, const IslandPlan& island) {
  IslandPlan without = island;
  for (PlanReplica& replica : without.replicas) {
    for (PlanStage& stage : replica.stages) stage.recomputed_layers.clear();
  }
  const auto layers = static_cast<int32_t>(request.facts.layers.size());
  std::string text;
  int stages = 0;
  for (size_t r = 0; r < island.replicas.size(); ++r) {
    for (size_t s = 0; s < island.replicas[r].stages.size(); ++s) {
      const PlanStage& stage = island.replicas[r].stages[s];
      if (stage.recomputed_layers.empty() || ++stages > kNamed) continue;
      const int32_t blocks =
          std::min(stage.first_layer + stage.layers, layers - 1) - std::max(stage.first_layer, 1);
      absl::StrAppend(&text, "; ");
      if (island.replicas.size() > 1) absl::StrAppend(&text, "replica ", r, "'s ");
      absl::StrAppend(&text, "stage ", s, " recomputes ", stage.recomputed_layers.size(), " of ",
                      blocks, " blocks");
      const std::optional<MemoryLack> worst = FindWorstLack(request, without, stage);
      if (!worst || worst->lacks_bytes() <= 0) continue;
      absl::StrAppend(&text, " (", worst->device, " would take ",
                      BytesText(worst->takes_bytes + worst->auxiliary_bytes), " of ",
                      BytesText(worst->has_bytes), " without)");
    }
  }
  if (stages > kNamed)
    absl::StrAppend(&text, ", and ", stages - kNamed, " more stages some of theirs");
  return text;
}

// ---- how devices of different speed share layers ----

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
    auto outcome = plan::EvaluateSaving(input.cluster, input.costs,
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
