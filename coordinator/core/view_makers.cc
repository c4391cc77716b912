#include "coordinator/core/view_makers.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "common/protocol/limits.h"
#include "coordinator/core/drain.h"
#include "coordinator/core/islands/grouping.h"
#include "coordinator/core/islands/island_members.h"
#include "coordinator/core/islands/islands.h"
#include "coordinator/core/islands/plans.h"
#include "coordinator/core/jobs.h"
#include "coordinator/core/relays.h"
#include "coordinator/core/rounds/expert_tokens.h"
#include "coordinator/core/rounds/round_length.h"
#include "coordinator/core/rounds/rounds.h"
#include "coordinator/core/rounds/site_jobs.h"
#include "coordinator/core/shards/moves.h"
#include "coordinator/core/shards/placement.h"
#include "coordinator/core/sharing/spares.h"
#include "coordinator/core/stalls.h"

namespace atl::coord {
namespace {

const Worker* FindIslandWorker(const State& s, const IslandRecord& island) {
  if (island.incarnation == 0) return nullptr;
  const Worker* worker = s.FindWorker(island.worker);
  return worker != nullptr && worker->record.incarnation == island.incarnation ? worker : nullptr;
}

// Why the plan has no part for the worker; empty: the planner has not considered it yet, or it
// works.
std::string DescribeSpareReason(const Planning& planning, const Worker& worker) {
  const auto left_out = planning.left_out.find(worker.record.name);
  if (left_out != planning.left_out.end()) return left_out->second;
  const bool considered =
      std::any_of(planning.considered.begin(), planning.considered.end(),
                  [&](const IslandMember& m) { return m.worker == worker.record.name; });
  if (!considered || worker.following) return "";
  return planning.trouble.empty() ? "no faster plan with it was found"
                                  : absl::StrCat("no part in the plan: ", planning.trouble);
}

void AddWorkers(const State& s, const Job& job, const IslandRecord& island, IslandView& view) {
  if (island.incarnation == 0) return;
  const IslandPlan* plan = PlanInForce(job, island);
  if (plan != nullptr) {
    view.plan = *plan;
    view.plan->programs.clear();  // thousands of operations, which no client reads
    view.plan->link_orders.clear();
  }
  view.planning = DescribePlanning(s, job, island);
  const auto planning = job.planning.find(island.island);
  // None is wanted now: what came of the newest one that was.
  if (view.planning.empty() && planning != job.planning.end()) {
    view.planning = planning->second.trouble;
  }
  if (auto it = job.switches.find(island.island); it != job.switches.end()) {
    view.plan_changes = it->second.changes;
  }
  for (const IslandMember& m : IslandMembers(s, island)) {
    IslandWorkerView worker;
    worker.worker = m.worker;
    worker.incarnation = m.incarnation;
    worker.leads = m.worker == island.worker;
    worker.in_plan = plan != nullptr && HasPart(*plan, m.worker);
    const Worker* member = s.FindWorker(m.worker);
    worker.attached = member != nullptr && member->attached;
    if (worker.attached && worker.leads && member->progress) {
      worker.plan_number = member->progress->plan_number;
      worker.activity = CleanText(member->progress->activity, 200);
    } else if (worker.attached && !worker.leads && member->following) {
      worker.plan_number = member->following->plan_number;
      worker.activity = CleanText(member->following->activity, 200);
    } else if (member != nullptr) {
      worker.activity = member->reason;
    }
    if (worker.attached && !worker.in_plan && planning != job.planning.end()) {
      const std::string why = DescribeSpareReason(planning->second, *member);
      if (!why.empty()) worker.activity = why;
    }
    if (worker.attached && !member->measuring.empty()) worker.activity = member->measuring;
    view.workers.push_back(std::move(worker));
  }
}

IslandView MakeView(const State& s, const Job& job, const IslandRecord& island) {
  IslandView view;
  view.island = island.island;
  view.worker = island.site.empty() ? island.worker : absl::StrCat("site ", island.site);
  view.generation = island.generation;
  view.incarnation = island.incarnation;
  view.ready = island.ready;
  view.reason = island.reason;
  view.steps_this_round = island.steps_this_round;
  view.rounds_accepted = island.rounds_accepted;
  view.rounds_rejected = island.rounds_rejected;
  view.tokens_committed = island.tokens_committed;
  view.evictions = island.evictions;
  view.site = island.site;
  view.leased_sequences = job.ledger->Leased(island.island);
  if (!island.site.empty()) {
    const Job* site_job = FindSiteJob(s, job, island.site);
    if (site_job != nullptr) view.site_job = site_job->id();
    view.attached = site_job != nullptr;
  } else {
    AddWorkers(s, job, island, view);
  }
  view.steps_interrupted = island.steps_interrupted;
  view.steps_redone = island.steps_redone;
  const Worker* worker = FindIslandWorker(s, island);
  view.activity =
      view.site_job.empty() ? island.reason : absl::StrCat("trains as job ", view.site_job);
  if (worker == nullptr) return view;
  view.attached = worker->attached;
  const bool measures = worker->attached && !worker->measuring.empty();
  if (!worker->attached) view.activity = worker->reason;
  if (measures) view.activity = worker->measuring;
  if (worker->progress && worker->progress->job == job.id()) {
    view.progress = worker->progress;
    if (job.progress.state == JobState::kPaused) view.progress->tokens_per_s = 0;
    view.progress->pushed_bytes = AddCounts(view.progress->pushed_bytes, island.pushed_bytes);
    view.progress->pulled_bytes = AddCounts(view.progress->pulled_bytes, island.pulled_bytes);
    view.steps_interrupted += worker->progress->steps_interrupted;
    view.steps_redone += worker->progress->steps_redone;
    if (!measures) view.activity = CleanText(worker->progress->activity, 200);
    if (const CalledIsland* call = FindIn(job.called, island.island)) {
      view.activity = absl::StrCat("leaves: ", call->reason);
    } else if (IsStalled(job, island.island)) {
      view.activity = absl::StrCat("not waited for: ", StallReason(s, job, island.island));
    }
  }
  return view;
}

RoundView MakeRoundView(const State& s, const Job& job, Instant now) {
  RoundView view;
  const RoundPhase phase = GetRoundPhase(job);
  // While islands train for it nothing has arrived yet.
  const bool trains = job.progress.state == JobState::kRunning && phase == RoundPhase::kIdle;
  view.phase = trains ? "open" : Name(phase);
  view.next_version = job.progress.version + 1;
  if (job.active()) view.reason = RoundReason(s, job, job.rounds);
  if (job.rounds.window) {
    view.opened_by = job.rounds.window->opened_by;
    const Instant deadline = WindowDeadline(job, job.rounds);
    if (deadline != kNever) view.closes_in_s = Seconds(std::max(Duration(0), deadline - now));
  }
  for (const auto& [id, record] : job.rounds.contributions) {
    if (record.dropped) continue;
    PendingContribution pending;
    pending.island = id.island;
    pending.base_version = id.base_version;
    pending.tokens = record.tokens;
    pending.shards = CountPushed(job, id);
    if (auto it = job.rounds.staged.find(id); it != job.rounds.staged.end()) {
      pending.shards_staged = CountStaged(it->second);
    }
    view.contributions.push_back(std::move(pending));
  }
  return view;
}

// `train_loss`: times tokens_per_s.
void AddSpeed(const State& s, const Job& job, JobSummary& summary) {
  for (const auto& [id, island] : job.islands) {
    const Worker* worker = FindIslandWorker(s, island);
    if (worker == nullptr || !worker->progress || worker->progress->job != job.id()) continue;
    const IslandProgress& p = *worker->progress;
    if (!std::isfinite(p.tokens_per_s) || p.tokens_per_s <= 0) continue;
    summary.tokens_per_s += p.tokens_per_s;
    summary.train_loss += p.tokens_per_s * p.train_loss;
  }
}

template <class M>
MemberView MakeCommonView(const State& s, const M& member, Instant now) {
  MemberView view;
  view.kind = Name(member.record.kind);
  view.name = member.record.name;
  view.incarnation = member.record.incarnation;
  view.attached = member.attached;
  view.reason = member.reason;
  if (member.attached) view.since_heartbeat_s = Seconds(now - member.last_heartbeat);
  view.software_version = member.software_version;
  view.site_source = "declared";
  if (!member.relay_own) view.relay_address = member.relay_address;
  view.relays = DescribeRelays(member);
  const DrainProgress drain = DescribeDrain(s, member);
  view.draining = drain.text;
  view.drained = drain.drained;
  return view;
}

}  // namespace

MemberView MakeView(const State& s, const Worker& worker, Instant now) {
  MemberView view = MakeCommonView(s, worker, now);
  view.devices = worker.devices;
  view.peer_endpoint = worker.peer_endpoint;
  view.more_peer_endpoints = worker.more_peer_endpoints;
  view.site = GetWorkerSite(worker);
  if (worker.site.empty()) view.site_source = worker.record.site_source;
  view.measuring = worker.measuring;
  view.utilisation = worker.utilisation;
  view.job = worker.candidate_for.empty() ? worker.spare_for : worker.candidate_for;
  if (!view.job.empty()) return view;
  const auto assignment = s.FindAssignment(worker);
  if (assignment.job != nullptr) view.job = assignment.job->id();
  return view;
}

MemberView MakeView(const State& s, const Server& server, Instant now) {
  MemberView view = MakeCommonView(s, server, now);
  view.site = GetServerSite(s, server);
  if (server.site.empty()) {
    view.site_source = view.site.empty() ? "" : "that of the workers on its host";
  }
  view.endpoint = server.endpoint;
  view.public_key = server.public_key;
  view.memory_bytes = server.memory_bytes;
  view.site_only = server.site_only;
  view.load = server.load;
  return view;
}

const char* TokenUnit(const Job& job) {
  return IsImages(job.spec().data.format) ? "images" : "tokens";
}

JobSummary MakeSummary(const State& s, const Job& job) {
  JobSummary summary;
  const ProgressRecord& progress = job.progress;
  summary.job = job.id();
  summary.owner = job.record.owner;
  summary.state = progress.state;
  summary.reason = progress.reason;
  summary.waiting_for = WaitingFor(s, job);
  summary.version = job.progress.version;
  summary.tokens_committed = job.progress.tokens_committed;
  summary.tokens_budget = job.ledger->budget() * job.spec().data.sequence_length;
  summary.validated_version = progress.validated_version;
  summary.validation_loss = progress.validation_loss;
  summary.validation_accuracy = progress.validation_accuracy;
  summary.first_validation_loss = progress.first_validation_loss;
  summary.validation_sets = progress.validation_sets;
  summary.scores = progress.scores;
  summary.active_islands = ActiveIslands(job);
  summary.contributes_to = job.spec().outer.contributes_to;
  summary.token_unit = TokenUnit(job);
  summary.exported_version = progress.exported_version;
  summary.skipped_sequences = job.progress.skipped_sequences;
  AddSpeed(s, job, summary);
  for (const auto& [id, island] : job.islands) {
    const Job* below = island.site.empty() ? nullptr : FindSiteJob(s, job, island.site);
    if (below != nullptr) AddSpeed(s, *below, summary);
  }
  if (summary.tokens_per_s > 0) summary.train_loss /= summary.tokens_per_s;
  if (progress.state == JobState::kPaused) summary.tokens_per_s = 0;
  return summary;
}

JobView MakeView(const State& s, const Job& job, Instant now) {
  JobView view;
  view.summary = MakeSummary(s, job);
  view.spec = job.spec();
  view.facts = job.record.facts;
  view.shards = ListPlacements(job.record.shards);
  if (job.spec().outer.shard_copies == 2) {
    view.copies = ListPlacements(job.record.shards, ReplicaRole::kStandby);
  }
  view.placement_max_over_mean = MaxOverMean(job.record.shards);
  for (const auto& [id, island] : job.islands) view.islands.push_back(MakeView(s, job, island));
  view.round = MakeRoundView(s, job, now);
  view.ledger = {job.ledger->budget(), job.ledger->Count(LedgerUse::kCommitted),
                 job.ledger->Count(LedgerUse::kPushed), job.ledger->Count(LedgerUse::kLeased),
                 job.ledger->free()};
  for (const auto& [round, decision] : job.rounds.decisions) view.decisions.push_back(decision);
  view.moves = MovesText(job);
  view.placement = PlacementText(s, job);
  view.grouping = job.record.grouping;
  view.round_length = RoundLengthText(s, job);
  view.evaluator = DescribeSpare(s, job);
  if (const std::optional<SiteJob>& site = job.record.site) {
    view.exchange = {
        site->site,     view.summary.contributes_to,    site->island,        site->base,
        site->based_at, site->contribution.has_value(), site->contributed_at};
  }
  return view;
}

}  // namespace atl::coord
