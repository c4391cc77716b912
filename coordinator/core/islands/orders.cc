// IslandOrders: built from the state, sent when they differ from what was sent last.

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/model/outer_cut.h"
#include "coordinator/core/islands/islands.h"
#include "coordinator/core/islands/plans.h"
#include "coordinator/core/islands/switching.h"
#include "coordinator/core/rounds/round_length.h"
#include "coordinator/core/rounds/site_data.h"
#include "coordinator/core/rounds/site_jobs.h"
#include "coordinator/core/shards/transfer_order.h"

namespace atl::coord {
namespace {

// `islands`: of workers, in all. `runs_out`: the island ends what it has begun in any case.
RunState SelectRunState(const Job& job, int64_t islands, bool runs_out, std::string& reason) {
  if (job.progress.state == JobState::kPaused) {
    reason = job.progress.reason;
    return RunState::kPause;
  }
  const int64_t needed = job.spec().outer.min_islands;
  if (job.progress.state == JobState::kRunning && islands < needed && !runs_out) {
    reason = absl::StrCat("the job needs ", needed, " islands and has ", islands);
    return RunState::kPause;
  }
  return RunState::kRun;
}

bool MayInitialize(const Job& job) {
  return std::all_of(job.rounds.links.begin(), job.rounds.links.end(),
                     [](const auto& entry) { return entry.second.assigned; });
}

// Returns whether an earlier generation of the island has pushed what the next version is made of.
// Without overlap the island waits for that one: its members' moments have the pushed steps, and
// from the committed version their data would be trained on a second time by another path.
bool AwaitsOwnPush(const Job& job, const IslandRecord& island) {
  if (job.spec().outer.overlap != Overlap::kNone || island.ready || island.resume) return false;
  const Version committed = job.progress.version;
  if (committed == kNoVersion) return false;
  const auto counts = [&](const ContributionId& id) {
    return id.generation != island.generation && id.base_version >= committed;
  };
  if (job.rounds.HasContribution(island.island, counts)) return true;
  const DecisionRecord* decision = job.rounds.FindDecision(committed + 1);
  return decision != nullptr &&
         std::any_of(decision->participants.begin(), decision->participants.end(),
                     [&](const DecisionParticipant& p) {
                       return p.contribution.island == island.island && counts(p.contribution);
                     });
}

// `before`: of the order before in this generation.
OrderHead MakeHead(const Job& job, const IslandRecord& island, int64_t islands,
                   const OrderHead& before) {
  const ProgressRecord& progress = job.progress;
  OrderHead head{.incarnation = island.incarnation,
                 .placement_revision = job.placement_revision,
                 .settings_revision = job.settings_revision,
                 .awaits_own_push = AwaitsOwnPush(job, island)};
  IslandOrder& order = head.order;
  order.job = job.id();
  order.island = island.island;
  order.generation = island.generation;
  order.run = SelectRunState(job, islands, job.called.contains(island.island), order.reason);
  order.initialize = job.progress.version == kNoVersion && progress.initializer == island.island &&
                     MayInitialize(job);
  order.committed_version = job.progress.version;
  order.resume = island.resume;
  // Sent together with the version that it belongs to.
  if (island.outcome && island.outcome->contribution.generation == island.generation) {
    order.outcome =
        island.outcome->version <= job.progress.version ? island.outcome : before.order.outcome;
  }
  order.steps_this_round = island.steps_this_round;
  order.tokens_committed = job.progress.tokens_committed;
  order.averaged_version = job.progress.averaged_version;
  order.averaged_steps = job.progress.averaged_steps;
  order.moments_version = GetMomentsVersion(job);
  order.active_islands = std::max<int64_t>(1, islands);
  const auto& validators = progress.validators;
  if (std::find(validators.begin(), validators.end(), island.island) != validators.end()) {
    order.validate_version = progress.validate_version;
    if (validators.front() == island.island) order.evaluations = progress.evaluations;
  }
  order.author = island.author;
  order.takes_over_from = island.takes_over_from;
  order.shared = !island.followers.empty();
  if (const IslandPlan* plan = PlanInForce(job, island)) {
    order.plan.number = plan->number;
    order.at_step_end = AtStepEnd(job, island);
  }
  return head;
}

void SendOrder(State& s, Job& job, const IslandRecord& island, const SentOrder& sent) {
  const Worker* worker = s.FindWorker(island.worker);
  if (worker == nullptr || !worker->attached) return;
  IslandOrder order = sent.head.order;
  order.sequence = sent.sequence;
  order.spec = SpecFor(job, *worker);
  order.layers = job.record.facts->layers;
  order.shards = ListPlacements(job.record.shards);
  if (!sent.head.awaits_own_push) order.pull_order = GetTransferOrder(job, island.island);
  if (const IslandPlan* plan = PlanInForce(job, island)) {
    order.plan = KeepWorkerPrograms(*plan, worker->record.name);
  }
  s.Send(*worker, std::move(order));
}

void SendMemberOrder(State& s, const Job& job, const Worker& worker, const SentMemberOrder& sent,
                     int64_t sequence) {
  MemberOrder order;
  order.job = job.id();
  order.spec = SpecFor(job, worker);
  order.island = sent.island;
  order.generation = sent.generation;
  order.sequence = sequence;
  order.plan = KeepWorkerPrograms(job.plans.at(sent.island), worker.record.name);
  order.at_step_end = AtStepEnd(job, job.islands.at(sent.island));
  s.Send(worker, std::move(order));
}

void RefreshMemberOrders(State& s, Job& job) {
  for (const auto& [id, island] : job.islands) {
    if (!job.touched.contains(id)) continue;
    const IslandPlan* plan = PlanInForce(job, island);
    if (plan == nullptr) continue;
    for (size_t i = 1; i < plan->members.size(); ++i) {
      const IslandMember& member = plan->members[i];
      const auto known = job.member_orders.find(member.worker);
      if (known != job.member_orders.end() && known->second.island == id &&
          known->second.generation == island.generation &&
          known->second.incarnation == member.incarnation &&
          known->second.plan_number == plan->number) {
        continue;
      }
      // A source may have an assignment in another island by now.
      const State::Assignment assignment = s.FindAssignment(member.worker);
      const bool elsewhere =
          assignment.job != nullptr && (assignment.job != &job || assignment.island != id);
      if (!HasPart(*plan, member.worker) && elsewhere) continue;
      const Worker* worker = s.FindWorker(member.worker);
      if (worker == nullptr || !worker->attached ||
          worker->record.incarnation != member.incarnation || !MayGoOver(s, job, island, *worker)) {
        continue;
      }
      SentMemberOrder& sent = job.member_orders[member.worker];
      sent = {id, island.generation, member.incarnation, plan->number, s.NextSequence()};
      sent.resending.Sent(s.now);
      SendMemberOrder(s, job, *worker, sent, sent.sequence);
    }
  }
}

// Lists what each member of the island sends, by its name, with the parts in the order of the
// shards.
std::map<NodeId, std::vector<GrantedPush>> ListPushesBySender(const Job& job,
                                                              const IslandRecord& island) {
  std::map<NodeId, std::vector<GrantedPush>> shares;
  const std::vector<ShardPlacement> shards = ListPlacements(job.record.shards);
  if (const IslandPlan* plan = PlanInForce(job, island); plan != nullptr) {
    for (const OuterPart& part :
         CutByOwners(*plan, shards, PartBlock(job.spec().outer.push_encoding))) {
      const bool whole = part.range.size() == shards[part.shard].elements;
      const NodeId& sender = part.holders.front();
      shares[sender].push_back(
          {part.shard, whole ? 0 : part.range.begin, whole ? 0 : part.range.size(), sender});
    }
    return shares;
  }
  for (const ShardPlacement& shard : shards) shares[""].push_back({shard.shard, 0, 0, ""});
  return shares;
}

void PlanPushes(Job& job) {
  std::map<NodeId, int32_t> server_index;
  for (const auto& [server, link] : job.rounds.links) {
    server_index.emplace(server, static_cast<int32_t>(server_index.size()));
  }
  std::vector<std::pair<IslandId, std::vector<GrantedPush>>> senders;
  std::vector<std::vector<Transfer>> transfers;
  for (const auto& [id, key] : job.rounds.push_plan.made_for) {
    for (auto& [sender, pushes] : ListPushesBySender(job, job.islands.at(id))) {
      std::vector<Transfer>& own = transfers.emplace_back();
      for (const GrantedPush& push : pushes) {
        const ShardDescriptor& shard = job.record.shards[push.shard];
        own.push_back({push.shard, server_index.at(GetActiveServer(shard)),
                       push.elements == 0 ? shard.elements : push.elements});
      }
      senders.emplace_back(id, std::move(pushes));
    }
  }
  const auto servers = static_cast<int32_t>(server_index.size());
  for (const ScheduledTransfer& next : ScheduleTransfers(transfers, servers)) {
    const auto& [island, pushes] = senders[next.sender];
    job.rounds.push_plan.order[island].push_back(pushes[next.transfer]);
  }
}

}  // namespace

const std::vector<ShardId>& GetTransferOrder(Job& job, IslandId id) {
  // Index of the island among the occupied ones: they are the senders.
  int32_t senders = 0;
  int32_t sender = 0;
  for (const auto& [other, island] : job.islands) {
    if (other == id) sender = senders;
    if (other == id || island.incarnation != 0) ++senders;
  }
  auto& plan = job.rounds.transfer_plans[senders];
  if (plan.empty()) {
    std::map<NodeId, int32_t> index;
    for (const auto& [server, link] : job.rounds.links) {
      index.emplace(server, static_cast<int32_t>(index.size()));
    }
    std::vector<Transfer> transfers;
    for (const ShardDescriptor& shard : job.record.shards) {
      transfers.push_back({shard.shard, index.at(GetActiveServer(shard)), shard.elements});
    }
    plan = PlanTransfers(transfers, static_cast<int32_t>(index.size()), senders);
  }
  return plan[sender];
}

const std::vector<GrantedPush>& GetPushOrder(Job& job, IslandId id) {
  std::map<IslandId, std::pair<Generation, int64_t>> islands;
  for (const auto& [other, island] : job.islands) {
    if (other != id && island.incarnation == 0) continue;
    const IslandPlan* plan = PlanInForce(job, island);
    islands[other] = {island.generation, plan == nullptr ? 0 : plan->number};
  }
  if (job.rounds.push_plan.made_for != islands) {
    job.rounds.push_plan = {std::move(islands), {}};
    PlanPushes(job);
  }
  return job.rounds.push_plan.order[id];
}

void RefreshOrders(State& s, Job& job) {
  const int64_t islands = TrainingIslands(s, job);
  for (const auto& [id, island] : job.islands) {
    const Worker* worker = s.FindWorker(island.worker);
    if (island.incarnation == 0 || worker == nullptr || !worker->attached ||
        worker->record.incarnation != island.incarnation) {
      continue;
    }
    // Without its plan the island could only start work that is discarded later.
    if (NeedsPlan(s, job, island) && PlanInForce(job, island) == nullptr) continue;
    if (!island.takes_over_from.empty() && !MayGoOver(s, job, island, *worker)) continue;
    auto [it, fresh] = job.orders.try_emplace(id);
    OrderHead head = MakeHead(job, island, islands, it->second.head);
    if (!fresh && it->second.head == head) continue;
    it->second.head = std::move(head);
    it->second.sequence = s.NextSequence();
    it->second.resending.Sent(s.now);
    SendOrder(s, job, island, it->second);
  }
  RefreshMemberOrders(s, job);
}

void ResendOrder(State& s, Job& job, IslandId id) {
  auto it = job.orders.find(id);
  // Not sent yet: RefreshOrders will at the end of this Step.
  if (it == job.orders.end() || !it->second.resending.Due(s.now)) return;
  const IslandRecord& island = job.islands.at(id);
  const IslandPlan* plan = PlanInForce(job, island);
  // Another plan is being made. An order without one would be refused as old, and its number used.
  if ((plan == nullptr ? 0 : plan->number) != it->second.head.order.plan.number) return;
  it->second.resending.SentAgain(s.now, s.HasManyMembers());
  SendOrder(s, job, island, it->second);
}

void ResendMemberOrder(State& s, Job& job, const NodeId& name) {
  auto it = job.member_orders.find(name);
  if (it == job.member_orders.end() || !it->second.resending.Due(s.now)) return;
  SentMemberOrder& sent = it->second;
  const Worker& worker = *s.FindWorker(name);
  const std::optional<MemberProgress>& progress = worker.following;
  const bool current = progress && progress->job == job.id() && progress->island == sent.island &&
                       progress->generation == sent.generation &&
                       progress->seen_sequence >= sent.sequence;
  if (current) return;
  const IslandPlan* plan = PlanInForce(job, job.islands.at(sent.island));
  if (plan == nullptr || plan->number != sent.plan_number) return;  // another one is being made
  const bool named = std::any_of(plan->members.begin() + 1, plan->members.end(),
                                 [&](const IslandMember& m) { return m.worker == name; });
  if (!named) return;
  sent.resending.SentAgain(s.now, s.HasManyMembers());
  // A stop may have crossed it, which the worker has carried out since.
  SendMemberOrder(s, job, worker, sent, s.NextSequence());
}

}  // namespace atl::coord
