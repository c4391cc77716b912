#include "coordinator/planning/planning.h"

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/number_text.h"
#include "common/status.h"
#include "coordinator/plan_io/island_plan_conversion.h"
#include "coordinator/planner/cluster/traffic.h"
#include "coordinator/planner/islands.h"
#include "coordinator/planning/auxiliary_memory.h"
#include "coordinator/planning/island_scope.h"
#include "coordinator/planning/objective.h"
#include "coordinator/planning/plan_changes.h"
#include "coordinator/planning/plan_memory.h"

namespace atl {
namespace {

absl::Status CheckTraffic(const PlanningInput& input, const plan::Plan& plan) {
  return plan::CheckTraffic(input.cluster, input.costs, plan.layout, plan.outcome.step_s);
}

void AddMembers(const PlanRequest& request, const PlanningInput& input, const plan::Layout& layout,
                IslandPlan& island) {
  for (const PlanMember& offered : request.members) {
    if (!plan::UsesNode(input.cluster, layout, offered.member.worker)) continue;
    IslandMember& member = island.members.emplace_back(offered.member);
    // A site that was only assumed is left out: no member would be near for certain.
    for (const plan::Device& device : input.cluster.devices) {
      if (device.node != member.worker) continue;
      member.site = offered.site.empty() && request.links.empty() ? "" : device.site;
    }
    member.nccl = offered.devices[0].nccl;
    for (const DeviceInfo& device : offered.devices) {
      if (device.nccl != member.nccl) member.nccl.clear();
    }
  }
}

// Searches for a layout whose programs fit, with a larger reserve each time.
constexpr int kMemoryTries = 5;

// A shorter step by less than this is no reason to recompute.
constexpr double kWorthRecomputing = 0.99;

// Replicas that keep the optimizer's state of an element, where there are several: a death costs
// nothing then.
constexpr int32_t kCopies = 2;

IslandPlan InRuntimeForm(const PlanRequest& request, const PlanningInput& input,
                         const plan::Plan& plan) {
  IslandPlan island = ToIslandPlan(input.cluster, plan);
  island.number = request.number;
  AddMembers(request, input, plan.layout, island);
  ListRecomputed(input.costs, plan.layout, &island);
  island.reason = absl::StrCat(plan::Describe(plan.layout), ": ", island.reason);
  const auto copies = static_cast<int32_t>(request.spec.layout.optimizer_copies);
  if (island.replicas.size() > 1) island.optimizer_copies = copies > 0 ? copies : kCopies;
  return island;
}

// Predicts as PredictMemory does; where the job does not say how many replicas keep the optimizer's
// state, one of them where memory requires it.
std::vector<MemoryLack> PredictFitting(const PlanRequest& request, IslandPlan* island) {
  std::vector<MemoryLack> lacks = PredictMemory(request, island);
  if (lacks.empty() || request.spec.layout.optimizer_copies > 0 || island->optimizer_copies <= 1) {
    return lacks;
  }
  IslandPlan once = *island;
  once.optimizer_copies = 1;
  if (!PredictMemory(request, &once).empty()) return lacks;
  absl::StrAppend(&once.reason, "; one replica keeps the optimizer's state of an element, because ",
                  "with two ", Text(lacks[0]));
  *island = std::move(once);
  return {};
}

// The best layout by the search's own account of memory.
absl::StatusOr<FoundPlan> Search(const PlanRequest& request, const PlanningInput& input) {
  ThreadPool pool(request.threads);
  plan::Options options;
  options.seed = request.seed;
  options.pool = &pool;
  options.stop = request.stop;
  options.enough = request.enough;
  if (request.improvements) options.improvements = *request.improvements;
  IslandPlan ran;
  ran.replicas = request.ran;
  auto ran_layout = LayoutFromIslandPlan(input.cluster, input.costs, ran);
  if (ran_layout.ok()) options.starts.push_back(*std::move(ran_layout));
  FoundPlan found;
  ATOLL_ASSIGN_OR_RETURN(found.plan, plan::PlanJob(input.cluster, input.costs, input.job, options));
  // A change now is not taken where it would go over a limit of traffic.
  const auto change = [&](const auto& apply) -> absl::Status {
    std::optional<plan::Plan> before;
    if (!input.cluster.bytes_per_day.empty()) before = found.plan;
    ATOLL_RETURN_IF_ERROR(apply());
    if (before && !CheckTraffic(input, found.plan).ok()) found.plan = *std::move(before);
    return absl::OkStatus();
  };
  ATOLL_RETURN_IF_ERROR(change([&] {
    KeepStateInPlace(request, input, found.plan);
    return absl::OkStatus();
  }));
  ATOLL_RETURN_IF_ERROR(change([&] { return ShareUnevenly(request, input, found.plan); }));
  plan::Rerank(input.cluster, input.costs, input.job, found.plan);
  found.island = InRuntimeForm(request, input, found.plan);
  return found;
}

// An island that trains already goes on, whatever its limits.
absl::Status KeepLimits(const PlanRequest& request, const PlanningInput& input,
                        IslandPlan& island) {
  const LayoutSpec& layout = request.spec.layout;
  const bool limited = layout.deadline_hours > 0 || layout.budget > 0;
  if (!limited && !input.cluster.HasPrices()) return absl::OkStatus();
  const double step_s = 1e-9 * static_cast<double>(island.step_ns);
  const TrainingRate rate = Rate(request, input, island, step_s).rate;
  absl::StrAppend(&island.reason, "; ", TotalsText(request.spec, rate));
  const absl::Status kept = CheckLimits(request.spec, rate);
  if (kept.ok() || request.number == 1) return kept;
  absl::StrAppend(&island.reason, "; not what the job requests: ", kept.message());
  return absl::OkStatus();
}

// Counts what its rounds send in addition to its steps.
absl::Status CountRounds(const PlanRequest& request, const PlanningInput& input, FoundPlan& found) {
  if (input.cluster.bytes_per_day.empty()) return absl::OkStatus();
  std::string& reason = found.island.reason;
  if (request.servers.empty()) {
    absl::StrAppend(&reason, "; what rounds send is not counted: where the parameter servers are ",
                    "is not known");
    return absl::OkStatus();
  }
  const plan::IslandOptions options = ToIslandOptions(request.spec);
  plan::RoundTraffic traffic(input.cluster, input.costs, options);
  traffic.Add(input.cluster, found.plan.layout, found.plan.outcome.step_s);
  ATOLL_RETURN_IF_ERROR(traffic.Check(request.servers));
  const std::string text = traffic.Text(request.servers);
  if (!text.empty()) absl::StrAppend(&reason, "; ", text);
  if (!text.empty() && request.islands_at_site > 1) {
    absl::StrAppend(&reason, ", the part of each of ", request.islands_at_site,
                    " islands at its site");
  }
  return absl::OkStatus();
}

absl::StatusOr<IslandPlan> Finish(const PlanRequest& request, const PlanningInput& input,
                                  FoundPlan found) {
  ATOLL_RETURN_IF_ERROR(CountRounds(request, input, found));
  IslandPlan island = std::move(found.island);
  ATOLL_RETURN_IF_ERROR(KeepLimits(request, input, island));
  if (!input.assumptions.empty()) absl::StrAppend(&island.reason, "; ", input.assumptions);
  ATOLL_RETURN_IF_ERROR(CheckHosts(request, island));
  ATOLL_RETURN_IF_ERROR(Annotate(Validate(island, static_cast<int>(request.facts.layers.size()),
                                          request.spec.inner.batch_sequences),
                                 "the planner made a plan that cannot run; please report this"));
  return island;
}

// Devices like those that lack memory are searched with so much less that what the search had left
// out of account fits, too.
void ReserveMore(const std::vector<MemoryLack>& lacks, PlanningInput& input) {
  std::map<int, int64_t> usable;  // by type
  for (const MemoryLack& lack : lacks) {
    for (const plan::Device& device : input.cluster.devices) {
      if (device.id != lack.device) continue;
      const plan::DeviceType& type = input.cluster.types[device.type];
      // At most a little less than was reserved, or the same layout would come again.
      const int64_t most = std::min(lack.reserved_bytes - 1, input.costs.UsableBytes(type));
      const int64_t fits =
          lack.has_bytes - lack.auxiliary_bytes - (lack.takes_bytes - lack.reserved_bytes);
      int64_t& least = usable.try_emplace(device.type, most).first->second;
      least = std::max<int64_t>(1, std::min({least, most, fits}));
    }
  }
  for (const auto& [type, bytes] : usable) {
    input.cluster.types[type].memory_bytes =
        static_cast<int64_t>(static_cast<double>(bytes) / (1 - input.costs.options().reserve));
  }
}

// For both forms' reasons.
void Say(const std::string& what, FoundPlan& found) {
  found.plan.reason += what;
  found.island.reason += what;
}

// The best layout that fits in truth.
absl::StatusOr<FoundPlan> SearchFitting(const PlanRequest& request, PlanningInput input) {
  std::optional<MemoryLack> least;  // of all tries, the worst device of the one that lacks least
  for (int tries = 1; tries <= kMemoryTries; ++tries) {
    absl::StatusOr<FoundPlan> found = Search(request, input);
    if (!found.ok() && !least) return found.status();
    if (!found.ok()) break;
    const std::vector<MemoryLack> lacks = PredictFitting(request, &found->island);
    if (lacks.empty()) {
      if (least) {
        found->plan.memory_binds = true;
        const std::string why =
            absl::StrCat("; found by ", tries,
                         " searches, with more memory kept back, because otherwise ", Text(*least));
        Say(why, *found);
      }
      return found;
    }
    const MemoryLack& worst = *std::max_element(
        lacks.begin(), lacks.end(),
        [](const MemoryLack& a, const MemoryLack& b) { return a.lacks_bytes() < b.lacks_bytes(); });
    if (!least || worst.lacks_bytes() < least->lacks_bytes()) least = worst;
    if (request.stop && request.stop()) break;
    ReserveMore(lacks, input);
  }
  return absl::ResourceExhaustedError(absl::StrCat("of all layouts found ", Text(*least)));
}

// Keeps of what the search's account of memory has made it recompute only what the exact memory
// requires.
void RecomputeNoMoreThanNeeded(const PlanRequest& request, const PlanningInput& input,
                               FoundPlan& found) {
  if (!Recomputes(found.island)) return;
  std::optional<plan::Plan> less = RecomputingLess(request, input, found.island, found.plan);
  if (!less || !CheckTraffic(input, *less).ok()) return;
  IslandPlan island = InRuntimeForm(request, input, *less);
  if (!PredictFitting(request, &island).empty()) return;
  found = {*std::move(less), std::move(island)};
  plan::Rerank(input.cluster, input.costs, input.job, found.plan);
}

absl::StatusOr<FoundPlan> FindPinned(const PlanRequest& request, PlanningInput input) {
  FoundPlan found;
  ATOLL_ASSIGN_OR_RETURN(found.plan, PinnedPlan(request, input));
  ATOLL_RETURN_IF_ERROR(Annotate(CheckTraffic(input, found.plan), request.plan_name));
  plan::Rerank(input.cluster, input.costs, input.job, found.plan);
  found.island = InRuntimeForm(request, input, found.plan);
  // An edited order may break the runtime's rules. Described clusters have no members.
  if (!request.members.empty()) {
    ATOLL_RETURN_IF_ERROR(
        Annotate(Validate(found.island, static_cast<int>(request.facts.layers.size()),
                          request.spec.inner.batch_sequences),
                 request.plan_name));
  }
  const std::vector<MemoryLack> lacks = PredictFitting(request, &found.island);
  if (lacks.empty()) return found;
  return absl::ResourceExhaustedError(absl::StrCat(request.plan_name, ": ", Text(lacks[0])));
}

}  // namespace

absl::StatusOr<FoundPlan> FindPlan(const PlanRequest& request, const PlanningInput& input) {
  if (!request.spec.layout.plan.empty()) return FindPinned(request, input);
  if (request.spec.layout.recompute != Recompute::kAuto) return SearchFitting(request, input);
  const PlanningInput recomputing = WithRecomputation(input);
  absl::StatusOr<FoundPlan> found = SearchFitting(request, recomputing);
  if (found.ok() && !found->plan.memory_binds) return found;
  absl::StatusOr<FoundPlan> plain = SearchFitting(request, input);
  if (!found.ok() && !plain.ok()) return found;
  if (found.ok()) RecomputeNoMoreThanNeeded(request, recomputing, *found);
  const double worth = found.ok() && Recomputes(found->island) ? kWorthRecomputing : 1;
  if (!found.ok() || (plain.ok() && found->plan.rank >= worth * plain->plan.rank)) return plain;
  if (Recomputes(found->island)) {
    Say(WhatRecomputes(request, found->island), *found);
    Say(plain.ok() ? absl::StrCat("; without recomputation ",
                                  SecondsText(1e-9 * static_cast<double>(plain->island.step_ns)),
                                  " a step")
                   : "; nothing fits without recomputation",
        *found);
  }
  return found;
}

namespace {

// Names the remedies for a lack of memory.
std::string Remedy(const JobSpec& spec) {
  std::vector<std::string> remedies;
  if (spec.layout.recompute == Recompute::kNone) remedies.push_back("leave out layout.recompute");
  if (spec.layout.memory_reserve_bytes > 0) {
    remedies.push_back("lower layout.memory_reserve_bytes");
  }
  // Otherwise all sizes were tried.
  if (spec.inner.micro_batch_sequences > 1) {
    remedies.push_back("lower inner.micro_batch_sequences");
  }
  if (remedies.empty()) {
    remedies = {"lower data.sequence_length", "use devices with more memory, or a smaller model"};
  }
  return absl::StrJoin(remedies, " or ");
}

absl::StatusOr<IslandPlan> MakeRequestedPlan(const PlanRequest& request, MakeInput make_input) {
  ATOLL_ASSIGN_OR_RETURN(const PlanningInput input, make_input(request));
  absl::StatusOr<FoundPlan> found = FindPlan(request, input);
  if (found.ok()) return Finish(request, input, *std::move(found));
  if (!absl::IsResourceExhausted(found.status())) return found.status();
  return absl::ResourceExhaustedError(
      absl::StrCat(found.status().message(), "; ", Remedy(request.spec)));
}

}  // namespace

absl::StatusOr<IslandPlan> PlanIsland(const PlanRequest& request) {
  return PlanIsland(request, MakePlanningInput);
}

absl::StatusOr<IslandPlan> PlanIsland(const PlanRequest& request, MakeInput make_input) {
  absl::StatusOr<IslandPlan> requested = MakeRequestedPlan(request, make_input);
  const LayoutSpec& fixed = request.spec.layout;
  const bool numbers =
      fixed.stages > 0 || fixed.replicas > 0 || fixed.tensor_parallel > 0 || !fixed.plan.empty();
  if (requested.ok() || request.number == 1 || !numbers) return requested;
  PlanRequest relaxed = request;
  relaxed.spec.layout.stages = relaxed.spec.layout.replicas = 0;
  relaxed.spec.layout.tensor_parallel = 0;
  relaxed.spec.layout.tensor_split_ratios.clear();
  relaxed.spec.layout.plan.clear();
  absl::StatusOr<IslandPlan> plan = MakeRequestedPlan(relaxed, make_input);
  if (!plan.ok()) return requested;
  absl::StrAppend(&plan->reason, "; not what the job requests, until that fits again: ",
                  requested.status().message());
  return plan;
}

namespace {

constexpr double kWorthSearching = 1.05;  // see PlanLike
constexpr int kLikeRestarts = 32;

// The stages and programs of a plan of other members, with these ones in their assignments.
IslandPlan WithMembers(const PlanRequest& request, const PlanRequest& other, IslandPlan plan) {
  std::map<NodeId, NodeId> renamed;
  for (size_t m = 0; m < other.members.size(); ++m) {
    renamed[other.members[m].member.worker] = request.members[m].member.worker;
  }
  const auto rename = [&](std::string& device) {
    device = absl::StrCat(renamed[WorkerFromDevice(device)], "/", IndexFromDevice(device));
  };
  for (PlanReplica& replica : plan.replicas) {
    for (PlanStage& stage : replica.stages) {
      for (std::string& device : stage.devices) rename(device);
    }
  }
  for (PlanProgram& program : plan.programs) rename(program.device);
  return plan;
}

}  // namespace

absl::StatusOr<IslandPlan> PlanLike(const PlanRequest& request, const PlanRequest& other,
                                    const IslandPlan& plan) {
  if (plan.replicas.empty()) return absl::InvalidArgumentError("the other island has no layout");
  ATOLL_ASSIGN_OR_RETURN(PlanningInput input, MakePlanningInput(request));
  if (Recomputes(plan)) input = WithRecomputation(std::move(input));
  const IslandPlan like = WithMembers(request, other, plan);
  FoundPlan found;
  plan::Plan& like_plan = found.plan;
  ATOLL_ASSIGN_OR_RETURN(like_plan.layout, LayoutFromIslandPlan(input.cluster, input.costs, like));
  MakeRoom(like_plan.layout, like, input);  // as the search that found it had
  ATOLL_ASSIGN_OR_RETURN(like_plan.outcome,
                         plan::EvaluateLayout(input.cluster, input.costs, like_plan.layout,
                                              {.restarts = kLikeRestarts, .seed = request.seed}));
  const auto limit_ns = kWorthSearching * static_cast<double>(plan.step_ns);
  if (1e9 * like_plan.outcome.step_s > limit_ns) {
    return absl::FailedPreconditionError("its step takes longer than that of the like island");
  }
  ATOLL_RETURN_IF_ERROR(CheckTraffic(input, like_plan));
  like_plan.reason = absl::StrCat("as found for an island of like workers, led by ",
                                  other.members[0].member.worker);
  KeepStateInPlace(request, input, like_plan);
  plan::Rerank(input.cluster, input.costs, input.job, like_plan);
  found.island = InRuntimeForm(request, input, like_plan);
  const std::vector<MemoryLack> lacks = PredictFitting(request, &found.island);
  if (!lacks.empty()) return absl::ResourceExhaustedError(Text(lacks[0]));
  return Finish(request, input, std::move(found));
}

}  // namespace atl
