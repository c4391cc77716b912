#include "coordinator/core/servers.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/protocol/fragments.h"
#include "common/protocol/outer_optimizer.h"
#include "common/protocol/round_limit.h"
#include "coordinator/core/adoption.h"
#include "coordinator/core/copies.h"
#include "coordinator/core/islands.h"
#include "coordinator/core/jobs.h"
#include "coordinator/core/moves.h"
#include "coordinator/core/placement.h"
#include "coordinator/core/rounds.h"
#include "coordinator/core/stalls.h"

namespace atl::coord {
namespace {

constexpr int kCommitsAtOnce = 64;
constexpr Duration kFaultRetry = std::chrono::seconds(10);

const DecisionRecord* DecisionOf(const Job& job, Version version) {
  for (auto it = job.rounds.decisions.rbegin(); it != job.rounds.decisions.rend(); ++it) {
    if (it->second.version == version) return &it->second;
  }
  return nullptr;
}

ServerLink* LinkOf(State& s, const Member& server, const JobId& job_id, Job*& job) {
  job = s.FindJob(job_id);
  if (job == nullptr) return nullptr;
  s.Touch(*job);
  auto it = job->rounds.links.find(server.record.name);
  return it == job->rounds.links.end() ? nullptr : &it->second;
}

// Whether the push is of one of the job's shards on this server, and lies within it.
bool IsOn(const Job& job, const NodeId& server, const PushId& push) {
  return SlotOn(job.record, server, push.shard).has_value();
}

// Notes a push that is staged on this server. REQUIRES: IsOn.
void AddStaged(const Job& job, const NodeId& server, const PushId& push, StagedShards& staged) {
  const int64_t elements = job.record.shards[static_cast<size_t>(push.shard)].elements;
  staged.Add(*SlotOn(job.record, server, push.shard), push.RangeIn(elements), elements);
}

// What of the job's shards on this server it says that it has staged.
std::map<ContributionId, StagedShards> StagedOn(const Job& job, const NodeId& server,
                                                const HeldJob* held) {
  std::map<ContributionId, StagedShards> staged;
  if (held == nullptr) return staged;
  const std::vector<ShardPlacement>& shards = job.record.shards;
  for (const PushId& push : held->staged) {
    if (IsOn(job, server, push))
      staged[ContributionOf(push)].Add(push, shards[push.shard].elements);
  }
  return staged;
}

// The server holds what was decided or ordered after the store was written.
bool IsAhead(const Job& job, const HeldJob* held) {
  return held != nullptr && (held->version > job.rounds.decided_version() ||
                             held->generation > job.progress.plan_generation ||
                             held->placement > job.record.placement);
}

// Shards of its own that the server does not have: it was being filled when it died. What was
// filled for good is stored.
std::set<ShardId> LackedBy(const Job& job, const NodeId& server, const HeldJob& held) {
  std::set<ShardId> lacking;
  if (held.version == kNoVersion) return lacking;  // shards are assigned with version 0
  const auto has = [](const std::vector<ShardId>& shards, ShardId shard) {
    return std::find(shards.begin(), shards.end(), shard) != shards.end();
  };
  ForEachSlotOn(job.record, server, [&](SlotId, const ShardPlacement& shard) {
    if (has(held.shards, shard.shard)) return;
    const bool filled = std::any_of(job.record.refilled.begin(), job.record.refilled.end(),
                                    [&](const RefilledShard& r) {
                                      return r.shard == shard.shard && r.version == held.version;
                                    });
    if (!filled || !has(held.filled, shard.shard)) lacking.insert(shard.shard);
  });
  return lacking;
}

// Can the server be brought from its version to the newest decided one? "" or why not.
std::string WhyNotCatchUp(const Job& job, const NodeId& server, Version version,
                          const HeldJob* held) {
  const Version decided = job.rounds.decided_version();
  if (held == nullptr && decided != kNoVersion) {
    return "it came back without the job: its --state-dir is empty, or another one";
  }
  if (const auto& lacking = job.rounds.links.at(server).lacking; !lacking.empty()) {
    return absl::StrCat("it came back without shard ", *lacking.begin(),
                        ", which has to be filled: atoll refill ", job.id(), " ", server);
  }
  std::map<ContributionId, StagedShards> staged = StagedOn(job, server, held);
  for (Version v = version + 1; v <= decided; ++v) {
    const DecisionRecord* decision = DecisionOf(job, v);
    if (decision == nullptr) {
      return absl::StrCat("it is at version ", version, " and the decision of version ", v,
                          " is not kept any more");
    }
    for (const DecisionParticipant& p : decision->participants) {
      if (!p.accepted) continue;
      std::optional<ShardId> lost;
      ForEachSlotOn(job.record, server, [&](SlotId, const ShardPlacement& shard) {
        if (!IsPushed(job, p.contribution, shard)) return;
        if (!staged[p.contribution].Holds(shard.shard)) lost = shard.shard;
      });
      if (!lost) continue;
      return absl::StrCat("it has lost island ", p.contribution.island, "'s push of shard ", *lost,
                          ", which version ", v, " is made of");
    }
  }
  return "";
}

// Takes over what the server says that it has staged. `fresh`: and nothing else.
void TakeStaged(Job& job, const NodeId& server, const HeldJob* held, bool fresh) {
  for (const auto& [id, record] : job.rounds.contributions) {
    if (record.dropped) continue;
    StagedShards& staged = job.rounds.staged[id];
    ForEachSlotOn(job.record, server, [&](SlotId slot, const ShardPlacement&) {
      if (fresh) staged.Forget(slot);
    });
    if (held == nullptr) {
      NoteStaged(job, job.rounds, id);
      continue;
    }
    for (const PushId& push : held->staged) {
      if (ContributionOf(push) == id && IsOn(job, server, push)) {
        AddStaged(job, server, push, staged);
      }
    }
    NoteStaged(job, job.rounds, id);
  }
  if (held == nullptr) return;
  for (const PushId& push : held->staged) {
    if (!MayCount(job.rounds, ContributionOf(push))) {
      job.rounds.links.at(server).unknown.insert(ContributionOf(push));
    }
  }
}

// Not before every server has said what it holds: another one may show that the store is older, and
// that a round was made of them.
void DropUnknown(State& s, Job& job) {
  if (!AllServersKnown(job)) return;
  for (auto& [server, link] : job.rounds.links) {
    std::erase_if(link.unknown, [&](const ContributionId& id) { return MayCount(job.rounds, id); });
    if (link.unknown.empty()) continue;
    s.SendToServer(server, DropContributions{job.id(),
                                             {link.unknown.begin(), link.unknown.end()},
                                             "no round will use them"});
    link.unknown.clear();
  }
}

constexpr char kStoreIsOlder[] =
    "it holds more than this coordinator's store knows, which is older; when all of the job's "
    "servers are attached the job is rebuilt from them";

// The job waits while there is one.
void SetProblem(State& s, Job& job, const NodeId& server, std::string problem) {
  ServerLink& link = job.rounds.links.at(server);
  if (job.record.removed) problem.clear();
  if (link.problem == problem) return;
  link.problem = std::move(problem);
  if (link.problem.empty()) return;
  s.Log(job.id(), Severity::kError,
        absl::StrCat("parameter server ", server, ": ", link.problem,
                     job.ended() ? "" : "; the job is waiting"));
}

// Also of a job that has ended: it can be exported.
void TakeEndpoint(Job& job, const Member& server) {
  for (std::vector<ShardPlacement>* shards : {&job.record.shards, &job.record.copies}) {
    for (ShardPlacement& shard : *shards) {
      if (shard.server != server.record.name) continue;
      if (shard.endpoint == server.endpoint && shard.public_key == server.public_key) continue;
      shard.endpoint = server.endpoint;
      shard.public_key = server.public_key;
      job.dirty.record = true;
      ++job.placement_revision;
    }
  }
}

// Servers that forward to it get its new address, and that it may lack what it had.
void TellForwarders(State& s, Job& job, const NodeId& server) {
  if (job.record.removed) return;  // its shards are those that are still to be deleted
  for (const ShardPlacement& copy : job.record.copies) {
    if (copy.server != server) continue;
    const auto link =
        job.rounds.links.find(job.record.shards[static_cast<size_t>(copy.shard)].server);
    if (link == job.rounds.links.end()) continue;
    link->second.assigned = false;
    link->second.again_at = s.now;
  }
}

void TakeHeld(State& s, Job& job, Member& server, const HeldJob* held, bool fresh) {
  const NodeId& name = server.record.name;
  ServerLink& link = job.rounds.links.at(name);
  const Version version = held == nullptr ? kNoVersion : held->version;
  const Version snapshot = held == nullptr ? kNoVersion : held->snapshot_version;
  TakeEndpoint(job, server);
  TellForwarders(s, job, name);
  link.assigned = false;
  link.end_sent = false;
  link.unknown.clear();
  link.again_at = s.now;
  // The hello before may have been an older one, sent again: what followed it shows the problem
  // solved.
  const bool newer = fresh || (!link.problem.empty() && held != nullptr && version >= link.version);
  link.version = fresh ? version : std::max(link.version, version);
  link.snapshot_version = fresh ? snapshot : std::max(link.snapshot_version, snapshot);
  if (newer) {
    link.described.reset();
    link.trouble.clear();
    link.ahead = IsAhead(job, held) && !job.record.removed;
    link.empty = held == nullptr;
    link.lacking.clear();
    if (held != nullptr) link.lacking = LackedBy(job, name, *held);
    link.held = link.lacking.empty() ? HeldJob() : *held;
    SetProblem(s, job, name, link.ahead ? kStoreIsOlder : WhyNotCatchUp(job, name, version, held));
  }
  link.known = link.problem.empty();
  if (!link.known || job.ended()) return;
  TakeStaged(job, name, held, fresh);
  AnswerEarlyPushes(s, job, job.rounds);
}

}  // namespace

void OnLackedShardsForgotten(State& s, Job& job, const NodeId& server) {
  const auto link = job.rounds.links.find(server);
  Member* member = s.FindMember(MemberKind::kServer, server);
  if (link == job.rounds.links.end() || link->second.lacking.empty() || !member->attached) return;
  const HeldJob held = link->second.held;
  TakeHeld(s, job, *member, &held, /*fresh=*/true);
}

void OnServerHello(State& s, Member& server, const ServerHello& message, bool fresh) {
  server.endpoint = CleanText(message.endpoint, 256);
  server.public_key = CleanText(message.public_key, 64);
  server.memory_bytes = message.memory_bytes;
  server.server_site = CleanText(message.site, 64);
  for (auto& [number, job] : s.jobs) {
    if (!job.rounds.links.contains(server.record.name)) continue;
    const auto held = std::find_if(message.jobs.begin(), message.jobs.end(),
                                   [&](const HeldJob& h) { return h.job == job.id(); });
    TakeHeld(s, job, server, held == message.jobs.end() ? nullptr : &*held, fresh);
  }
  ForgetHeld(s, server.record.name);
  OnReceiverHello(s, server.record.name);
  for (const HeldJob& held : message.jobs) {
    const Job* job = s.FindJob(held.job);
    // A server with a newer placement than the store has may hold what has moved since.
    const bool moves = job != nullptr && held.placement <= job->record.placement &&
                       TakesPartInMoves(*job, server.record.name);
    if (moves || (job != nullptr && job->rounds.links.contains(server.record.name))) continue;
    if (s.removed.contains(held.job)) {
      s.SendToServer(server.record.name, RemoveJob{held.job});
    } else {
      NoteHeld(s, server.record.name, held);
    }
  }
}

void OnServerHeartbeat(State& s, Member& server, const ServerHeartbeat& message) {
  server.load = message;
  server.load.jobs.clear();
  for (const HeldJob& held : message.jobs) {
    Job* job = nullptr;
    ServerLink* link = LinkOf(s, server, held.job, job);
    AskWhatIsHeld(s, server.record.name, held.job);
    if (link == nullptr || !link->known) continue;
    link->snapshot_version = std::max(link->snapshot_version, held.snapshot_version);
    if (held.version > link->version) {
      OnRoundApplied(s, server, RoundApplied{held.job, held.version});
    }
    if (job->ended() && held.snapshot_version < held.version) link->end_sent = false;
    if (job->active() && link->assigned) SendFencesTo(s, *job, server.record.name);
  }
}

void OnShardsAssigned(State& s, Member& server, const ShardsAssigned& message) {
  Job* job = nullptr;
  ServerLink* link = LinkOf(s, server, message.job, job);
  if (link == nullptr || !link->known || link->assigned) return;
  if (message.placement < job->record.placement) return;  // of an earlier assignment
  link->assigned = true;
  link->trouble.clear();
  link->again_at = s.now;
  job->moving.givers.erase(server.record.name);
  if (!TakenOver(*job)) return;
  for (const NodeId& giver : job->moving.givers) {
    if (const auto gives = job->rounds.links.find(giver); gives != job->rounds.links.end()) {
      gives->second.again_at = s.now;
    }
  }
  for (auto& [released, again_at] : job->moving.release_again_at) again_at = s.now;
}

// Decisions wait for whole contributions: what completes none touches nothing. Of a round of
// islands of a hundred workers each server says this tens of thousands of times.
void OnPushStaged(State& s, Member& server, const PushStaged& message) {
  Job* job = s.FindJob(message.push.job);
  if (job == nullptr) return;
  const auto link = job->rounds.links.find(server.record.name);
  if (link == job->rounds.links.end() || !link->second.known) return;
  if (!IsOn(*job, server.record.name, message.push)) return;
  const ContributionId id = ContributionOf(message.push);
  auto it = job->rounds.contributions.find(id);
  link->second.trouble.clear();  // its log takes writes
  if (it != job->rounds.contributions.end() && !it->second.dropped) {
    const size_t complete = job->rounds.complete.size();
    AddStaged(*job, server.record.name, message.push, job->rounds.staged[id]);
    NoteStaged(*job, job->rounds, id);
    NotePush(s, *job, id.island);
    if (job->rounds.complete.size() != complete) s.Touch(*job);
  } else if (!MayCount(job->rounds, id)) {
    link->second.unknown.insert(id);
    s.Touch(*job);
  }
}

namespace {

// The shards whose statistics a server sends: each shard's by one server. Empty: of all that it
// holds.
std::vector<ShardId> AskedShards(const Job& job, const NodeId& server) {
  std::vector<ShardId> asked;
  if (job.record.copies.empty()) return asked;
  for (const ShardPlacement& shard : job.record.shards) {
    if (shard.server == server) asked.push_back(shard.shard);
  }
  return asked;
}

}  // namespace

void OnStatistics(State& s, Member& server, const Statistics& message) {
  Job* job = nullptr;
  ServerLink* link = LinkOf(s, server, message.job, job);
  if (link == nullptr || !job->rounds.collecting ||
      job->rounds.collecting->version != message.version ||
      job->rounds.collecting->contributions != message.contributions ||
      message.shards != AskedShards(*job, server.record.name)) {
    return;
  }
  std::set<int32_t> expected;
  for (const ShardPlacement& shard : job->record.shards) {
    const bool in_turn = IsInTurn(message.version, shard.layer, job->spec().outer.fragments);
    if (in_turn && shard.server == server.record.name) expected.insert(shard.layer);
  }
  const size_t k = message.contributions.size();
  if (!HasStatisticsByLayer(k) && !expected.empty()) expected = {0};
  for (const LayerGram& layer : message.layers) {
    const bool fits = layer.values.size() == k * k || layer.values.size() == (k + 1) * (k + 1);
    if (expected.erase(layer.layer) == 0 || !fits) {
      return FailJob(
          s, *job,
          absl::StrCat("parameter server ", server.record.name, " sent statistics of layer ",
                       layer.layer, " that it does not hold, or of the wrong size"));
    }
  }
  if (!expected.empty()) {
    return FailJob(s, *job,
                   absl::StrCat("parameter server ", server.record.name,
                                " sent no statistics of layer ", *expected.begin()));
  }
  job->rounds.collecting->grams[server.record.name] = message.layers;
}

void OnRoundApplied(State& s, Member& server, const RoundApplied& message) {
  Job* job = nullptr;
  ServerLink* link = LinkOf(s, server, message.job, job);
  if (link == nullptr || !link->known || message.version <= link->version) return;
  if (job->record.removed) return;
  if (message.version > job->rounds.decided_version()) {
    link->ahead = true;
    link->known = false;
    link->again_at = s.now;
    return SetProblem(s, *job, server.record.name, kStoreIsOlder);
  }
  link->version = message.version;
  link->trouble.clear();
  link->again_at = s.now;
}

void OnServerFault(State& s, Member& server, const ServerFault& message) {
  Job* job = nullptr;
  ServerLink* link = LinkOf(s, server, message.job, job);
  if (link == nullptr || job->ended()) return;
  const std::string trouble =
      absl::StrCat("parameter server ", server.record.name, ": ", CleanText(message.reason));
  if (!link->known) {
    // What it holds is damaged: this says how.
    if (!message.passing) SetProblem(s, *job, server.record.name, CleanText(message.reason));
    return;
  }
  if (!message.passing) {
    link->assigned = false;
    link->again_at = s.now + kFaultRetry;
  }
  link->trouble = trouble;
  if (std::exchange(link->logged_trouble, trouble) == trouble) return;
  s.Log(job->id(), Severity::kWarning, absl::StrCat(trouble, "; it tries again"));
}

// ------------------------------------------------------------------------------- what is owed ----

namespace {

bool IsBehind(const Job& job, const ServerLink& link) {
  return link.version < job.rounds.decided_version();
}

// Only a job that is done is ended on its servers: one that has failed or was cancelled keeps its
// momentum.
bool WantsEnd(const Job& job, const ServerLink& link) {
  const bool finished = job.progress.state == JobState::kFinishing && job.progress.validated_final;
  return (job.progress.state == JobState::kDone || finished) && !IsBehind(job, link);
}

bool Owes(const Job& job, const NodeId& server, const ServerLink& link) {
  if (!link.known) return false;
  if (job.record.removed) return true;
  // A round that was decided before the end is made on all servers, or they would stay at different
  // versions.
  if (IsBehind(job, link)) return true;
  if (job.ended()) return WantsEnd(job, link) && !link.end_sent;
  if (!link.assigned) return true;
  if (job.rounds.collecting && IsActive(job.record, server) &&
      !job.rounds.collecting->grams.contains(server)) {
    return true;
  }
  return WantsEnd(job, link) && link.snapshot_version < job.rounds.progress.version;
}

void SendAssignment(State& s, Job& job, const NodeId& server) {
  AssignShards assign{job.id(),
                      {},
                      job.spec().outer.learning_rate,
                      job.spec().outer.momentum,
                      job.spec().schedule.snapshot_every_rounds,
                      CharterOf(job)};
  ForEachSlotOn(job.record, server, [&](SlotId slot, const ShardPlacement& shard) {
    assign.shards.push_back({shard.shard, shard.layer, shard.elements, shard.begin});
    if (IsCopy(job.record, slot) || job.record.copies.empty()) return;
    const ShardPlacement& copy = job.record.copies[static_cast<size_t>(slot)];
    const Member* to = s.FindMember(MemberKind::kServer, copy.server);
    if (to == nullptr) return;
    assign.forwards.push_back({slot, copy.endpoint, copy.public_key, to->record.incarnation});
  });
  s.SendToServer(server, std::move(assign));
  SendFencesTo(s, job, server);
}

void SendCommits(State& s, Job& job, const NodeId& server, Version from) {
  const Version to = std::min<Version>(job.rounds.decided_version(), from + kCommitsAtOnce);
  for (Version v = from + 1; v <= to; ++v) {
    const DecisionRecord* decision = DecisionOf(job, v);
    if (decision == nullptr) return;
    CommitRound commit{job.id(), v, {}, decision->dropped, {}, decision->step};
    for (const DecisionParticipant& p : decision->participants) {
      if (p.accepted) commit.terms.push_back({p.contribution, p.weight});
    }
    if (v == job.rounds.decided_version()) commit.image = ImageOf(job, *decision);
    s.SendToServer(server, std::move(commit));
  }
}

}  // namespace

namespace {

// While a job is stale its servers only get requests for what they hold.
bool OwesDescription(const State& s, const NodeId& server, const ServerLink& link) {
  const Member* member = s.FindMember(MemberKind::kServer, server);
  return member != nullptr && member->attached && !link.described;
}

void AskForDescriptions(State& s, Job& job) {
  for (auto& [server, link] : job.rounds.links) {
    if (!OwesDescription(s, server, link) || s.now < link.again_at) continue;
    link.again_at = s.now + kRetryInterval;
    s.SendToServer(server, DescribeJob{job.id()});
  }
}

}  // namespace

void PumpServers(State& s, Job& job) {
  if (job.stale()) return AskForDescriptions(s, job);
  PumpMoves(s, job);
  if (!job.ended()) DropUnknown(s, job);
  const bool fences_changed = std::exchange(job.rounds.fences_changed, false) && job.active();
  for (auto& [server, link] : job.rounds.links) {
    // Together with the assignment otherwise.
    if (fences_changed && link.assigned) SendFencesTo(s, job, server);
    if (!Owes(job, server, link) || s.now < link.again_at) continue;
    link.again_at = s.now + kRetryInterval;
    const bool gives = job.active() && !link.assigned && job.moving.givers.contains(server);
    if (gives && !TakenOver(job)) continue;
    if (job.record.removed) {
      s.SendToServer(server, RemoveJob{job.id()});
    } else if (!link.assigned && !job.ended()) {
      SendAssignment(s, job, server);  // before its end, too: it may have a shard that moved here
    } else if (WantsEnd(job, link)) {
      link.end_sent = true;
      s.SendToServer(server, EndJob{job.id()});
    } else if (IsBehind(job, link)) {
      SendCommits(s, job, server, link.version);
    } else if (job.rounds.collecting) {
      s.SendToServer(server, CollectStatistics{job.id(), job.rounds.collecting->version,
                                               job.rounds.collecting->contributions,
                                               AskedShards(job, server)});
    }
  }
}

void AskServersNow(State& s, Job& job) {
  for (auto& [server, link] : job.rounds.links) link.again_at = s.now;
}

Instant NextServerRetry(const State& s, const Job& job) {
  Instant next = kNever;
  const bool stale = job.stale();
  for (const auto& [server, link] : job.rounds.links) {
    const bool owes = stale ? OwesDescription(s, server, link) : Owes(job, server, link);
    if (owes) next = std::min(next, link.again_at);
  }
  return next;
}

bool AllServersKnown(const Job& job) {
  return std::all_of(job.rounds.links.begin(), job.rounds.links.end(),
                     [](const auto& entry) { return entry.second.known; });
}

std::string MissingServers(const State& s, const Job& job) {
  std::string missing;
  bool wrong = false;
  for (const auto& [server, link] : job.rounds.links) {
    if (link.known) continue;
    const Member* member = s.FindMember(MemberKind::kServer, server);
    const bool attached = member != nullptr && member->attached;
    absl::StrAppend(&missing, missing.empty() ? "parameter server " : ", ", server, " (",
                    member == nullptr ? "never seen"
                    : attached        ? link.problem
                                      : member->reason,
                    ")");
    if (attached && !link.ahead) wrong = true;
  }
  if (wrong) {
    absl::StrAppend(
        &missing,
        ": start it with the folder that it had, or with a copy of that; if it is lost, "
        "atoll refill fills its shards from an island; atoll recover writes the newest whole "
        "version of what is left");
  }
  return missing;
}

std::string ServerTroubles(const Job& job) {
  std::string text;
  for (const auto& [server, link] : job.rounds.links) {
    if (!link.trouble.empty()) absl::StrAppend(&text, "; ", link.trouble);
  }
  return text;
}

// -------------------------------------------------------------------------------------- room ----

int64_t FreeBytes(const State& s, const Member& server) {
  int64_t free = server.memory_bytes;
  for (const auto& [number, job] : s.jobs) {
    const int64_t bytes = ServerBytesPerElement(job.spec().outer);
    ForEachSlotOn(job.record, server.record.name,
                  [&](SlotId, const ShardPlacement& shard) { free -= shard.elements * bytes; });
    for (const ShardMove& move : job.record.moves) {
      const ShardPlacement& shard = PlacementOf(job.record, move.shard);
      if (move.to == server.record.name && shard.server != move.to) {
        free -= shard.elements * bytes;
      }
    }
  }
  for (const auto& [job, holders] : s.held) {
    const auto held = holders.find(server.record.name);
    if (held == holders.end() || !held->second.described) continue;
    const AssignShards& assignment = held->second.described->assignment;
    const OuterSpec& outer = assignment.charter.spec.outer;
    if (!ValidateOuterChoice(outer).ok()) continue;
    for (const OwnedShard& shard : assignment.shards) {
      free -= shard.elements * ServerBytesPerElement(outer);
    }
  }
  return free;
}

bool HasRoom(const State& s, const Job& job) {
  for (const auto& [name, link] : job.rounds.links) {
    const Member* server = s.FindMember(MemberKind::kServer, name);
    if (server == nullptr) return false;
    int64_t free = FreeBytes(s, *server);
    for (const auto& [number, other] : s.jobs) {
      const int64_t bytes = other.StagedBytes(name);
      if (!other.ended()) free -= bytes * StagedContributions(other.rounds);
      if (&other == &job) free -= bytes;
    }
    if (free < 0) return false;
  }
  return true;
}

}  // namespace atl::coord
