#include "coordinator/core/islands/switching.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "coordinator/core/islands/island_members.h"
#include "coordinator/core/islands/islands.h"
#include "coordinator/core/islands/plans.h"

namespace atl::coord {
namespace {

constexpr size_t kChangesKept = 16;
constexpr int64_t kStateBytesPerElement = 12;  // parameter and moments

bool IsHere(const State& s, const IslandMember& member) {
  const Worker* worker = s.FindWorker(member.worker);
  return worker != nullptr && worker->attached && worker->record.incarnation == member.incarnation;
}

bool AllHere(const State& s, const std::vector<IslandMember>& members) {
  return std::all_of(members.begin(), members.end(),
                     [&](const IslandMember& m) { return IsHere(s, m); });
}

bool Serves(const Job& job, const IslandRecord& island, const Worker& worker) {
  return worker.following && worker.following->job == job.id() &&
         worker.following->island == island.island &&
         worker.following->generation == island.generation;
}

// The leader so far has nothing of the plan before under way any more, and says so by following.
bool HasHandedOver(const State& s, const Job& job, const IslandRecord& island) {
  const Worker* before = s.FindWorker(island.takes_over_from);
  auto sent = job.member_orders.find(island.takes_over_from);
  return before != nullptr && before->attached && sent != job.member_orders.end() &&
         sent->second.plan_number == island.plan_number && Serves(job, island, *before) &&
         before->following->seen_sequence >= sent->second.sequence;
}

bool HasStopped(const State& s, const Job& job, const IslandRecord& island) {
  if (!island.takes_over_from.empty()) return HasHandedOver(s, job, island);
  const Worker* leader = s.FindWorker(island.worker);
  if (leader == nullptr || !leader->progress) return false;
  const IslandProgress& progress = *leader->progress;
  return progress.job == job.id() && progress.island == island.island &&
         progress.generation == island.generation &&
         std::max(progress.setting_up, progress.plan_number) >= island.plan_number;
}

// The successor leads from the first plan that it has set up, even if the next one is being made by
// then: from there on the others follow it, and the former leader is one of them.
void EndHandover(State& s, Job& job, const IslandRecord& found) {
  const Worker* successor = s.FindWorker(found.worker);
  if (found.takes_over_from.empty() || successor == nullptr || !successor->progress) return;
  const IslandProgress& progress = *successor->progress;
  if (progress.job != job.id() || progress.island != found.island ||
      progress.generation != found.generation || progress.plan_number == 0) {
    return;
  }
  IslandRecord& island = job.EditIsland(found.island);
  s.Log(job.id(), Severity::kInfo,
        absl::StrCat("island ", island.island, ": worker ", island.worker, " has taken over from ",
                     island.takes_over_from));
  island.takes_over_from.clear();
}

}  // namespace

bool IsExpected(const State& s, const IslandMember& member) {
  const Worker* worker = s.FindWorker(member.worker);
  return worker != nullptr && (worker->attached || worker->reattach_by) &&
         worker->record.incarnation == member.incarnation;
}

std::vector<IslandMember> Stepping(const State& s, const Job& job, const IslandRecord& island) {
  auto found = job.plans.find(island.island);
  if (found == job.plans.end() || found->second.members.empty()) return {};
  const IslandPlan& plan = found->second;
  // The plan is of another leader: what that one led belongs to an earlier generation.
  if (plan.members[0].worker != island.worker ||
      plan.members[0].incarnation != island.incarnation) {
    return {};
  }
  auto change = job.switches.find(island.island);
  std::vector<IslandMember> members;
  if (change != job.switches.end() && change->second.plan_number == plan.number &&
      !IsSetUp(s, job, island, plan)) {
    members = change->second.stepping;  // it has not switched to this one yet
  } else {
    members = plan.members;
    std::erase_if(members, [&](const IslandMember& m) { return !HasPart(plan, m.worker); });
  }
  if (!AllHere(s, members)) return {};
  return members;
}

void BeginSwitch(State& s, Job& job, const IslandRecord& island, const std::string& reason,
                 std::vector<IslandMember> stepping) {
  Switch& change = job.switches[island.island];
  change.plan_number = island.plan_number;
  change.since = s.now;
  int64_t elements = 0;
  for (const LayerSize& layer : job.record.facts->layers) elements += layer.elements;
  const Duration moving = GetStateTransferLimit(elements * kStateBytesPerElement);
  change.limit = std::max({kStepEndLimit, change.step_limit, moving});
  change.step_limit = StepLimit(job.plans.at(island.island), kStepEndLimit);
  change.stepping = std::move(stepping);
  change.changes.push_back({island.plan_number, !change.stepping.empty(), reason});
  if (change.changes.size() > kChangesKept) change.changes.erase(change.changes.begin());
}

bool AtStepEnd(const Job& job, const IslandRecord& island) {
  auto found = job.switches.find(island.island);
  return found != job.switches.end() && found->second.plan_number == island.plan_number &&
         !found->second.stepping.empty();
}

bool MayGoOver(const State& s, const Job& job, const IslandRecord& island, const Worker& worker) {
  if (worker.record.name == island.takes_over_from) return true;  // the first of all
  const bool waits = !island.takes_over_from.empty() || AtStepEnd(job, island);
  // A worker under no plan of the island has nothing that could be interrupted. But a successor
  // fetches the leader's control state, which is complete when that leader has stopped.
  const bool successor = !island.takes_over_from.empty() && worker.record.name == island.worker;
  if (!waits || (!successor && !Serves(job, island, worker))) return true;
  return HasStopped(s, job, island);
}

const IslandMember* FindSuccessor(const State& s, const Job& job, const IslandRecord& island) {
  const Worker* leader = s.FindWorker(island.worker);
  if (leader == nullptr || !leader->leaves() || !island.takes_over_from.empty()) return nullptr;
  auto found = job.plans.find(island.island);
  if (found == job.plans.end() || Stepping(s, job, island).empty() ||
      !IsSetUp(s, job, island, found->second)) {
    return nullptr;
  }
  for (const IslandMember& member : found->second.members) {
    for (const IslandMember& follower : island.followers) {
      if (follower.worker != member.worker || follower.incarnation != member.incarnation) continue;
      const Worker* worker = s.FindWorker(member.worker);
      const bool serves = worker != nullptr && worker->attached && Serves(job, island, *worker);
      if (serves) return &follower;
    }
  }
  // Else a spare one, that fetches what there is from the leader alone.
  auto planning = job.planning.find(island.island);
  for (const IslandMember& follower : island.followers) {
    const bool left_out =
        planning != job.planning.end() && planning->second.left_out.contains(follower.worker);
    if (HasPart(found->second, follower.worker)) continue;  // and does not serve yet
    if (IsHere(s, follower) && !left_out) return &follower;
  }
  return nullptr;
}

void BeginHandover(State& s, Job& job, IslandId id, const IslandMember& successor) {
  IslandRecord& island = job.EditIsland(id);
  NoteSteps(s, island, /*lost=*/false);  // its successor counts from 0
  const Worker* leaver = s.FindWorker(island.worker);
  job.switches[id].unpushed_steps = leaver->progress->unpushed_steps;  // see FindSuccessor
  NoteLost(island.worker, leaver->record.draining ? "it is drained" : leaver->reason, island);
  island.takes_over_from = island.worker;
  island.worker = successor.worker;
  island.incarnation = successor.incarnation;
  std::erase_if(island.followers, [&](const IslandMember& m) { return m.worker == island.worker; });
  job.member_orders.erase(island.worker);
  job.orders.erase(id);
  island.reason = absl::StrCat("worker ", island.worker, " leads after ", island.takes_over_from,
                               ", which leaves");
  s.Log(job.id(), Severity::kInfo, absl::StrCat("island ", id, ": ", island.reason));
}

void AdvanceSwitches(State& s, Job& job) {
  for (const auto& [id, found] : job.islands) {
    if (!job.touched.contains(id)) continue;
    EndHandover(s, job, found);
    const IslandPlan* plan = PlanInForce(job, found);
    if (found.incarnation == 0 || plan == nullptr || !IsHere(s, plan->members[0])) continue;
    const bool set_up = IsSetUp(s, job, found, *plan);
    if (auto change = job.switches.find(id); change != job.switches.end() && !set_up) {
      const bool late = s.now >= change->second.since + change->second.limit;
      if (late || !AllHere(s, change->second.stepping)) change->second.stepping.clear();
    }
    if (found.takes_over_from.empty()) continue;
    const NodeId before = found.takes_over_from;
    const bool is_source =
        std::any_of(plan->members.begin(), plan->members.end(),
                    [&](const IslandMember& m) { return m.worker == before && IsExpected(s, m); });
    if (is_source) continue;
    RenewIsland(s, job, id, absl::StrCat("worker ", before, " ended before it had handed over"),
                StartFrom::kSaved);
    IslandRecord& island = job.EditIsland(id);
    island.evictions++;
    island.steps_redone += job.switches[id].unpushed_steps;
  }
}

Instant NextSwitchDeadline(const State& s, const Job& job) {
  Instant next = kNever;
  for (const auto& [id, change] : job.switches) {
    if (change.stepping.empty()) continue;
    const IslandRecord& island = job.islands.at(id);
    const IslandPlan* plan = PlanInForce(job, island);
    const bool waits = island.incarnation != 0 && plan != nullptr && IsHere(s, plan->members[0]) &&
                       !IsSetUp(s, job, island, *plan);
    if (waits) next = std::min(next, change.since + change.limit);
  }
  return next;
}

}  // namespace atl::coord
