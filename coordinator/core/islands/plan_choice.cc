#include "coordinator/core/islands/plan_choice.h"

#include <algorithm>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/number_text.h"
#include "coordinator/core/islands/island_members.h"
#include "coordinator/core/islands/plans.h"

namespace atl::coord {
namespace {

std::string Names(const std::vector<IslandMember>& members) {
  return absl::StrJoin(members, ", ", [](std::string* out, const IslandMember& m) {
    absl::StrAppend(out, m.worker);
  });
}

// Why the island itself needs a new plan.
std::string ReplanReason(const State& s, const Job& job, const IslandRecord& island,
                         const IslandPlan& plan) {
  const Worker* leader = Leader(s, island);
  if (leader == nullptr || !leader->progress) return "";
  const IslandProgress& progress = *leader->progress;
  const bool current = progress.job == job.id() && progress.generation == island.generation &&
                       progress.plan_number == plan.number;
  return current ? CleanText(progress.plan_wanted, 200) : "";
}

std::vector<IslandMember> WithPart(const IslandPlan& plan) {
  std::vector<IslandMember> members = plan.members;
  std::erase_if(members, [&](const IslandMember& m) { return !HasPart(plan, m.worker); });
  return members;
}

bool SameLayout(const IslandPlan& a, const IslandPlan& b) {
  return SameWorkers(WithPart(a), WithPart(b)) && a.replicas == b.replicas &&
         a.tensor_split_ratios == b.tensor_split_ratios &&
         a.optimizer_copies == b.optimizer_copies &&
         std::equal(a.programs.begin(), a.programs.end(), b.programs.begin(), b.programs.end(),
                    [](const PlanProgram& x, const PlanProgram& y) {
                      return x.device == y.device && x.ops == y.ops;
                    });
}

// Returns whether the plan has the numbers that the job fixes. A device may have several stages of
// a replica.
bool MatchesLayout(const LayoutSpec& layout, const IslandPlan& plan) {
  const auto is = [](int64_t requested, size_t has) {
    return requested == 0 || requested == static_cast<int64_t>(has);
  };
  return is(layout.replicas, plan.replicas.size()) &&
         is(layout.tensor_parallel, static_cast<size_t>(TensorParallel(plan))) &&
         std::all_of(plan.replicas.begin(), plan.replicas.end(), [&](const PlanReplica& replica) {
           std::set<std::string> devices;
           for (const PlanStage& stage : replica.stages) devices.insert(stage.devices.front());
           return is(layout.stages, devices.size());
         });
}

}  // namespace

bool Contains(const std::vector<IslandMember>& members, const IslandMember& member, size_t at) {
  const auto same = [&](const IslandMember& m) {
    return m.worker == member.worker && m.incarnation == member.incarnation;
  };
  return (at < members.size() && same(members[at])) ||
         std::any_of(members.begin(), members.end(), same);
}

const Worker* Leader(const State& s, const IslandRecord& island) {
  const Worker* leader = s.FindWorker(island.worker);
  return leader != nullptr && leader->attached ? leader : nullptr;
}

void FindReason(const State& s, const Job& job, const IslandRecord& island,
                const std::vector<IslandMember>& island_members, Planning& planning) {
  planning.reason.clear();
  planning.urgent = true;
  auto found = job.plans.find(island.island);
  if (found == job.plans.end()) {
    planning.reason = "it is the island's first";
    return;
  }
  const IslandPlan& plan = found->second;
  if (plan.members.empty() || !SameWorkers({plan.members[0]}, {island_members[0]})) {
    planning.reason = island_members[0].worker == island.worker
                          ? absl::StrCat("worker ", island.worker, " leads now")
                          : absl::StrCat("worker ", island.worker, " leaves");
    return;
  }
  for (size_t i = 0; i < plan.members.size(); ++i) {
    const IslandMember& member = plan.members[i];
    if (Contains(island_members, member, i) || !HasPart(plan, member.worker)) continue;
    planning.reason = absl::StrCat("worker ", member.worker, " is unavailable");
    return;
  }
  if (planning.changed.unusable()) {
    planning.reason = planning.changed.Text();
    return;
  }
  planning.urgent = false;
  for (size_t i = 0; i < island_members.size(); ++i) {
    const IslandMember& member = island_members[i];
    if (Contains(plan.members, member, i) || Contains(planning.considered, member, i)) continue;
    planning.reason = absl::StrCat("worker ", member.worker, " has joined");
    return;
  }
  if (s.now < planning.replan_not_before) return;
  planning.reason =
      !planning.changed.empty() ? planning.changed.Text() : ReplanReason(s, job, island, plan);
}

absl::Status CheckPlan(const Job& job, const std::vector<IslandMember>& requested,
                       const IslandPlan& plan) {
  if (plan.members.empty() || !SameWorkers({plan.members[0]}, {requested[0]})) {
    return absl::InternalError(absl::StrCat("the plan is not led by ", requested[0].worker));
  }
  for (const IslandMember& member : plan.members) {
    if (Contains(requested, member)) continue;
    return absl::InternalError(
        absl::StrCat("the plan names worker ", member.worker, ", which was not offered"));
  }
  return atl::Validate(plan, static_cast<int32_t>(job.record.facts->layers.size()),
                       job.spec().inner.batch_sequences);
}

std::string WhyKeep(const State& s, const Job& job, const IslandRecord& island,
                    const IslandPlan& current, const PlanMade& answer) {
  const IslandPlan& made = *answer.plan;
  if (SameLayout(current, made)) return "the same layout is still the best";
  // The one in force was made because the job's numbers did not fit for a while.
  const LayoutSpec& layout = job.spec().layout;
  if (MatchesLayout(layout, made) && !MatchesLayout(layout, current)) return "";
  if (!layout.plan.empty() && (made.replicas != current.replicas ||
                               made.tensor_split_ratios != current.tensor_split_ratios)) {
    return "";
  }
  if (answer.rank > 0 && answer.current_rank > 0) {
    if (answer.rank <= (1 - s.options.plan_gain) * answer.current_rank) return "";
    return absl::StrFormat("the best other one would cost %.1f%% of this one",
                           100 * answer.rank / answer.current_rank);
  }
  double takes_ms = static_cast<double>(current.step_ns) / 1e6;
  const bool replan_wanted = !ReplanReason(s, job, island, current).empty();
  const Worker* leader = Leader(s, island);
  // The island sends the request because its steps are not what was predicted.
  if (answer.current_step_ns > 0) {
    takes_ms = static_cast<double>(answer.current_step_ns) / 1e6;
  } else if (replan_wanted && leader->progress->step_seconds_idle_link > 0) {
    takes_ms = leader->progress->step_seconds_idle_link * 1e3;
  }
  const double made_ms = static_cast<double>(made.step_ns) / 1e6;
  if (takes_ms <= 0 || made_ms <= (1 - s.options.plan_gain) * takes_ms) return "";
  return absl::StrCat("the best other one would take ", SecondsText(made_ms / 1e3),
                      " a step, this one takes ", SecondsText(takes_ms / 1e3));
}

std::string DescribePlan(const IslandPlan& plan) {
  const size_t stages = plan.replicas.empty() ? 0 : plan.replicas[0].stages.size();
  std::string text =
      absl::StrCat("plan ", plan.number, " by ", Names(WithPart(plan)), ": ", plan.replicas.size(),
                   plan.replicas.size() == 1 ? " replica" : " replicas", " of ", stages,
                   stages == 1 ? " stage" : " stages");
  if (const int most = TensorParallel(plan); most > 1) {
    size_t least = static_cast<size_t>(most);
    for (const PlanReplica& replica : plan.replicas) {
      for (const PlanStage& stage : replica.stages) least = std::min(least, stage.devices.size());
    }
    absl::StrAppend(&text, " on ",
                    static_cast<int>(least) < most ? absl::StrCat(least, " to ") : "", most,
                    " devices each");
  }
  if (!plan.schedule.empty()) absl::StrAppend(&text, ", ", plan.schedule);
  if (plan.step_ns > 0) {
    absl::StrAppend(&text, ", ", SecondsText(static_cast<double>(plan.step_ns) / 1e9),
                    " a step predicted");
  }
  return text;
}

}  // namespace atl::coord
