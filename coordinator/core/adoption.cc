#include "coordinator/core/adoption.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "coordinator/core/jobs.h"
#include "coordinator/core/removal.h"
#include "coordinator/core/shards/servers.h"
#include "coordinator/core/shards/whole_job.h"
#include "coordinator/core/sharing/spares.h"

namespace atl::coord {
namespace {

constexpr Duration kRebuildRetry = std::chrono::seconds(10);
// More than the changes that a store lacks can have given: what a worker has made under one of them
// must never get the name of something else.
constexpr Generation kGenerationsSkipped = 1 << 16;

DecisionRecord DecisionFrom(const JobId& job, const CommitRound& newest) {
  DecisionRecord decision;
  decision.job = job;
  decision.round = newest.image.round;
  decision.version = newest.version;
  decision.previous = newest.version - 1;
  decision.dropped = newest.dropped;
  decision.step = newest.step;
  decision.tokens = newest.image.tokens;
  decision.tokens_committed_after = newest.image.tokens_committed;
  decision.optimizer_steps = newest.image.optimizer_steps;
  decision.closed_because = "rebuilt from the parameter servers' logs";
  for (const RoundTerm& term : newest.terms) {
    DecisionParticipant p;
    p.contribution = term.contribution;
    p.weight = term.weight;
    p.tokens = term.tokens;
    p.expert_tokens = term.expert_tokens;
    p.accepted = true;
    p.reason = decision.closed_because;
    decision.participants.push_back(std::move(p));
  }
  return decision;
}

// No worker has an island any more; its former holder is to get it again.
void VacateIslands(State& s, Job& job, const JobImage& image, const std::string& reason) {
  for (const IslandAccount& account : image.islands) {
    IslandRecord& island = job.EditIsland(account.island);
    island.job = job.id();
    island.island = account.island;
    island.worker = account.worker;
    island.rounds_accepted = account.rounds_accepted;
    island.rounds_rejected = account.rounds_rejected;
    island.tokens_committed = account.tokens_committed;
    job.rounds.EditPenalty(account.island) = account.penalty;
  }
  for (const auto& [id, unused] : std::map(job.islands)) {
    IslandRecord& island = job.EditIsland(id);
    island.generation = ++job.EditProgress().plan_generation;
    island.incarnation = 0;
    island.followers.clear();
    island.ready = false;
    island.resume.reset();
    island.last_push_base = kNoVersion;  // what was pushed and not decided is dropped below
    island.lease_request = -1;
    island.lease_ranges.clear();
    island.outcome.reset();
    island.author = 0;
    island.takes_over_from.clear();
    island.reason = reason;
    job.vacant_since[id] = s.now;
    job.ErasePlan(id);
  }
}

// Drops what was not decided, which is of no use without the records of it.
void DropUndecided(State& s, Job& job, const Descriptions& by_server, const CommitRound* newest) {
  for (const auto& [server, described] : by_server) {
    std::set<ContributionId> drop;
    for (const PushId& push : described->held.staged) drop.insert(ToContributionId(push));
    if (newest != nullptr) {
      for (const RoundTerm& term : newest->terms) drop.erase(term.contribution);
    }
    if (drop.empty()) continue;
    s.SendToServer(server, DropContributions{job.id(),
                                             {drop.begin(), drop.end()},
                                             "the coordinator's record of it is lost"});
  }
}

void ForgetRounds(Job& job, int64_t newest_round) {
  for (const auto& [id, record] : std::map(job.rounds.contributions))
    job.rounds.EraseContribution(id);
  while (!job.rounds.decisions.empty() && job.rounds.decisions.rbegin()->first >= newest_round) {
    job.rounds.dirty.decisions.insert(job.rounds.decisions.rbegin()->first);
    job.rounds.decisions.erase(std::prev(job.rounds.decisions.end()));
  }
  // The next one follows none that is kept: a chain begins (rounds/decision_chain.h).
  job.EditProgress().decisions_digest.clear();
  job.rounds.staged.clear();
  job.rounds.complete.clear();
  job.rounds.waits_for_room.clear();
  job.rounds.early_requests.clear();
  job.rounds.window.reset();
  job.rounds.collecting.reset();
  job.orders.clear();
  job.member_orders.clear();
  job.planning.clear();
  job.switches.clear();
  job.rounds.transfer_plans.clear();
  job.rounds.push_plan = PushPlan();
  job.validating_since = kNever;
}

void TakeShards(State& s, Job& job, const WholeJob& whole, const Descriptions& by_server) {
  JobRecord& record = job.EditRecord();
  record.spec = whole.definition->spec;
  record.facts = whole.definition->facts;
  record.island_scope = whole.definition->island_scope;
  record.grouping = whole.definition->grouping;
  record.shards = whole.shards;
  record.placement = NextPlacement(std::max(record.placement, whole.placement));
  job.moving = Moving();
  job.rounds.links.clear();
  const Descriptions holders = SelectHolders(whole, by_server);
  for (const auto& [server, described] : by_server) {
    if (!holders.contains(server)) {
      // Whichever shards it has had.
      record.shards.front().replicas.push_back(
          {.server = server, .role = ReplicaRole::kLeaving, .since = record.placement});
      continue;
    }
    ServerLink& link = job.rounds.links[server];
    link.known = true;
    link.again_at = s.now;
    link.version = described->held.version;
    link.snapshot_version = described->held.snapshot_version;
  }
  ForEachHolder(job.EditRecord().shards, [&](const ShardDescriptor&, ShardReplica& replica) {
    SetHolder(*s.FindServer(replica.server), replica);
  });
  ++job.placement_revision;
  job.rounds.fences_changed = true;
}

void ForgetValidation(ProgressRecord& progress) {
  progress.validators.clear();
  progress.validation_sets.clear();
  progress.evaluations.clear();
  progress.evaluations_next.clear();
  progress.scores.clear();
  progress.validate_version = kNoVersion;
  progress.validated_final = false;
}

// Takes the newest decision, which FinishRound finishes as soon as all servers have applied it.
// Servers do not know what was skipped: that stays.
void TakeNewest(Job& job, const WholeJob& whole) {
  const JobImage& image = whole.newest->image;
  ProgressRecord& progress = job.EditProgress();
  job.rounds.EditDecision(image.round) = DecisionFrom(job.id(), *whole.newest);
  progress.version = whole.ended ? whole.version : whole.version - 1;
  progress.tokens_committed = image.tokens_committed - (whole.ended ? 0 : image.tokens);
  progress.round = image.round;
  progress.averaged_version = image.averaged_version;
  progress.averaged_steps = image.averaged_steps;
  progress.optimizer_steps = image.optimizer_steps;
  progress.rounds_since = progress.steps_since = progress.masked_since = 0;
  progress.loss_since = 0;
  progress.steps_between_pushes = 0;
  progress.validated_version = image.validated_version;
  progress.validation_loss = image.validation_loss;
  progress.first_validation_loss = image.first_validation_loss;
}

// Makes the job what its servers say. REQUIRES: they are attached. An error changes nothing.
absl::Status Rebuild(State& s, Job& job, const Descriptions& described, absl::string_view verb) {
  // They may lie in the links, which are made anew.
  std::map<NodeId, JobDescribed> copies;
  for (const auto& [server, what] : described) copies[server] = *what;
  Descriptions by_server;
  for (const auto& [server, what] : copies) by_server[server] = &what;
  const auto whole = AddUp(by_server);
  if (!whole.ok()) return whole.status();
  const JobImage none;
  const JobImage& image = whole->newest == nullptr ? none : whole->newest->image;
  if (image.islands.empty() && job.islands.empty()) {
    return Lacks("it has no committed version: submit it again, nothing is lost by it");
  }
  // The servers may know a later end of the job than this store.
  Ledger ledger = *job.ledger;
  if (!ledger.CommitOnly(image.committed, ComputeSequenceBudget(whole->definition->spec))) {
    return Lacks("the data that its rounds consumed contradicts its specification");
  }
  std::vector<NodeId> names;
  for (const auto& [server, what] : by_server) names.push_back(server);
  const std::string reason =
      absl::StrCat(verb, " from what ", absl::StrJoin(names, ", "), " hold: version ",
                   whole->version, ", ", image.tokens_committed, " tokens");
  *job.ledger = std::move(ledger);
  TakeShards(s, job, *whole, by_server);
  ForgetRounds(job, image.round);
  job.recovered = false;
  ProgressRecord& progress = job.EditProgress();
  progress.job = job.id();
  progress.outdated.clear();
  progress.restored = false;
  // Unavailable servers may know newer generations, from an earlier adoption.
  progress.plan_generation =
      std::max({progress.plan_generation, whole->generation, s.epoch * kGenerationsSkipped}) +
      kGenerationsSkipped;
  progress.initializer = -1;
  ForgetValidation(progress);
  if (whole->newest != nullptr) TakeNewest(job, *whole);
  VacateIslands(s, job, image, reason);
  DropUndecided(s, job, by_server, whole->newest);
  ReleaseSpareFrom(s, job, reason);
  const JobState before = progress.state;
  const bool stays = before == JobState::kPaused || job.ended();
  s.SetState(job,
             whole->ended         ? JobState::kDone
             : stays              ? before
             : whole->version < 0 ? JobState::kInitializing
                                  : JobState::kRunning,
             reason);
  s.Log(
      job.id(), Severity::kWarning,
      absl::StrCat("rebuilt: parameters, momentum, tokens, the data ledger, islands' accounts and "
                   "penalties, up to version ",
                   whole->version,
                   ". Not known any more: norms and losses of the decision of that version, void "
                   "rounds after it, contributions that were not decided (their data is free "
                   "again), leases; and, where the store has them not, earlier decisions, whether "
                   "the job was paused, and its log"));
  return absl::OkStatus();
}

// Null if all have said what they hold; else a server that has not.
const NodeId* NotDescribed(const std::map<NodeId, HeldElsewhere>& holders) {
  for (const auto& [server, held] : holders) {
    if (!held.described) return &server;
  }
  return nullptr;
}

Descriptions ListDescriptions(const std::map<NodeId, HeldElsewhere>& holders) {
  Descriptions by_server;
  for (const auto& [server, held] : holders) {
    if (held.described) by_server[server] = &*held.described;
  }
  return by_server;
}

bool IsOrphan(const State& s, const JobId& id) {
  const Job* job = s.FindJob(id);
  return !s.removed.contains(id) &&
         (job == nullptr || (!job->record.removed && job->record.shards.empty()));
}

// Collects what the job's servers have described, also those to which shards have moved since this
// store was written. A server may hold nothing: what it held has moved, or is lost. Returns the
// first that has not said what it holds; null: all have.
const NodeId* CollectDescriptions(const State& s, const Job& job, Descriptions& by_server) {
  if (const auto holders = s.held.find(job.id()); holders != s.held.end()) {
    for (const auto& [server, held] : holders->second) {
      if (held.described && !job.rounds.links.contains(server))
        by_server[server] = &*held.described;
    }
  }
  for (const auto& [server, link] : job.rounds.links) {
    const Server* member = s.FindServer(server);
    if (member != nullptr && member->attached && link.empty && !link.described) continue;
    if (!link.described) return &server;
    by_server[server] = &*link.described;
  }
  return nullptr;
}

// Adopts a job whose shards are placed.
absl::Status AdoptOutdated(State& s, Job& job) {
  Descriptions by_server;
  if (const NodeId* server = CollectDescriptions(s, job, by_server)) {
    return absl::UnavailableError(absl::StrCat("parameter server ", *server,
                                               " has not said what it holds of job ", job.id(),
                                               ": start it, try again"));
  }
  const absl::Status status = Rebuild(s, job, by_server, "adopted");
  if (status.ok()) s.held.erase(job.id());
  if (status.ok()) return status;
  return absl::FailedPreconditionError(
      absl::StrCat("job ", job.id(), " cannot be adopted: ", status.message()));
}

}  // namespace

JobDefinition MakeJobDefinition(const Job& job) {
  return {job.spec(), *job.record.facts, job.record.island_scope, job.record.grouping,
          job.record.placement};
}

JobImage BuildJobImage(const Job& job, const DecisionRecord& decision) {
  JobImage image;
  image.round = decision.round;
  image.tokens = decision.tokens;
  image.tokens_committed = decision.tokens_committed_after;
  image.plan_generation = job.progress.plan_generation;
  image.committed = job.ledger->Committed();
  image.validated_version = job.progress.validated_version;
  image.validation_loss = job.progress.validation_loss;
  image.first_validation_loss = job.progress.first_validation_loss;
  const bool averages = decision.step.averages_moments;
  image.averaged_version = averages ? decision.version : job.progress.averaged_version;
  image.optimizer_steps = decision.optimizer_steps;
  image.averaged_steps =
      averages ? std::llround(image.optimizer_steps) : job.progress.averaged_steps;
  for (const auto& [id, island] : job.islands) {
    IslandAccount account{
        id, island.worker, island.rounds_accepted, island.rounds_rejected, island.tokens_committed,
        {}};
    if (auto it = job.rounds.penalties.find(id); it != job.rounds.penalties.end())
      account.penalty = it->second;
    image.islands.push_back(std::move(account));
  }
  return image;
}

void NoteHeld(State& s, const NodeId& server, const HeldJob& held) {
  HeldElsewhere& elsewhere = s.held[held.job][server];
  elsewhere.held = held;
  elsewhere.described.reset();
  s.SendToServer(server, DescribeJob{held.job});
}

void RequestJobDescription(State& s, const NodeId& server, const JobId& job) {
  const auto holders = s.held.find(job);
  if (holders == s.held.end()) return;
  const auto held = holders->second.find(server);
  if (held == holders->second.end() || held->second.described) return;
  s.SendToServer(server, DescribeJob{job});
}

void ForgetHeld(State& s, const NodeId& server) {
  for (auto it = s.held.begin(); it != s.held.end();) {
    if (it->second.erase(server) > 0) {
      if (Job* job = s.FindJob(it->first)) s.Touch(*job);
    }
    it = it->second.empty() ? s.held.erase(it) : std::next(it);
  }
}

void OnJobDescribed(State& s, Server& server, const JobDescribed& message) {
  const NodeId& name = server.record.name;
  if (Job* job = s.FindJob(message.held.job); job != nullptr && job->stale()) {
    if (auto link = job->rounds.links.find(name); link != job->rounds.links.end()) {
      link->second.described = message;
      return;
    }
  }
  const auto holders = s.held.find(message.held.job);
  if (holders == s.held.end()) return;
  const auto held = holders->second.find(name);
  if (held == holders->second.end()) return;
  held->second.described = message;
  const JobId& above = message.assignment.definition.spec.outer.contributes_to;
  if (s.removed.contains(above)) RemoveOrphansBelow(s, above);
}

void SetOutdated(State& s, Job& job, const std::string& why) {
  const JobState state = job.progress.state;
  if (!job.recovered || job.record.removed || state == JobState::kDone ||
      state == JobState::kCancelled || !job.progress.outdated.empty()) {
    return;
  }
  job.EditProgress().outdated = why;
  for (auto& [server, link] : job.rounds.links) link.again_at = s.now;
  s.Log(job.id(), Severity::kError, OutdatedText(job));
}

bool HasDecided(const State& s) {
  return (!s.jobs.empty() || !s.removed.empty()) && s.outdated.empty();
}

std::string OutdatedText(const Job& job) {
  if (job.progress.outdated.empty()) return "";
  return absl::StrCat("nothing is decided: ", job.progress.outdated,
                      "; start the coordinator with the newest --state-dir or --store, or "
                      "--restore an intact backup, or go on from what the parameter servers hold: "
                      "atoll adopt ",
                      job.id());
}

std::string RestoredText(const State& s, const Job& job) {
  std::string missing = MissingServers(s, job);
  for (const auto& [server, link] : job.rounds.links) {
    if (missing.empty()) missing = link.problem;
  }
  return absl::StrCat("the store was restored from a backup: the job is rebuilt from what its ",
                      "parameter servers hold, as soon as all are attached",
                      missing.empty() ? "" : "; ", missing);
}

absl::Status Adopt(State& s, const JobId& id) {
  if (Job* job = s.FindJob(id); job != nullptr && !job->progress.outdated.empty()) {
    if (!job->record.shards.empty()) return AdoptOutdated(s, *job);
    if (!s.held.contains(id)) {
      // Not even placed, as far as is known: the store's record is all there is.
      job->recovered = false;
      job->EditProgress().outdated.clear();
      s.Log(id, Severity::kWarning, "adopted as the store has it: no attached server holds it");
      return absl::OkStatus();
    }
  }
  const auto holders = s.held.find(id);
  if (holders == s.held.end() || !IsOrphan(s, id)) {
    return absl::NotFoundError(absl::StrCat("no attached parameter server holds an orphaned job ",
                                            CleanText(id, 100), ": see atoll ls"));
  }
  if (const NodeId* server = NotDescribed(holders->second)) {
    return absl::UnavailableError(absl::StrCat("parameter server ", *server,
                                               " has not said yet what it holds of job ", id,
                                               ": try again"));
  }
  Job* job = s.FindJob(id);
  const int64_t number = job != nullptr ? job->record.number : s.jobs.next_number();
  Job adopted;
  adopted.record.job = id;
  adopted.record.number = number;
  const absl::Status status = Rebuild(s, adopted, ListDescriptions(holders->second), "adopted");
  if (!status.ok()) {
    return absl::FailedPreconditionError(
        absl::StrCat("job ", id, " cannot be adopted: ", status.message()));
  }
  for (auto& [name, worker] : s.workers) {
    if (worker.candidate_for == id) s.SetCandidate(worker, "");
  }
  s.jobs.Add(number, id) = std::move(adopted);
  s.held.erase(holders);
  return absl::OkStatus();
}

bool RebuildIfWhole(State& s, Job& job) {
  if (!job.progress.outdated.empty()) return false;
  Descriptions by_server;
  if (CollectDescriptions(s, job, by_server) != nullptr) return false;
  const absl::Status status = Rebuild(s, job, by_server, "rebuilt");
  if (status.ok()) s.held.erase(job.id());
  if (status.ok()) return true;
  for (auto& [server, link] : job.rounds.links) {
    link.described.reset();
    link.again_at = s.now + kRebuildRetry;
    if (!link.ahead && !job.progress.restored) continue;
    const std::string problem = absl::StrCat(
        "this coordinator's store is older than what it "
        "holds, and the job cannot be rebuilt: ",
        status.message());
    if (link.problem != problem) s.Log(job.id(), Severity::kError, problem);
    link.problem = problem;
  }
  return false;
}

std::vector<OrphanView> Orphans(const State& s) {
  std::map<JobId, OrphanView> views;
  for (const auto& [id, holders] : s.held) {
    if (!IsOrphan(s, id)) continue;
    OrphanView& view = views[id];
    for (const auto& [server, held] : holders) {
      view.servers.push_back(server);
      view.version = std::max(view.version, held.held.version);
    }
    if (const NodeId* server = NotDescribed(holders)) {
      view.missing = absl::StrCat("parameter server ", *server, " has not said yet what it holds");
    } else {
      view.missing = std::string(AddUp(ListDescriptions(holders)).status().message());
    }
  }
  for (const auto& [name, worker] : s.workers) {
    if (!worker.attached) continue;
    for (const JobId& id : worker.held) {
      if (!IsOrphan(s, id) || (s.FindJob(id) != nullptr && !views.contains(id))) continue;
      OrphanView& view = views[id];
      view.workers.push_back(name);
      if (view.servers.empty()) view.missing = "no attached parameter server holds it";
    }
  }
  std::vector<OrphanView> list;
  for (auto& [id, view] : views) {
    view.job = id;
    list.push_back(std::move(view));
  }
  return list;
}

}  // namespace atl::coord
