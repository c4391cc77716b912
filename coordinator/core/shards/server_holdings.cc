#include "coordinator/core/shards/server_holdings.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "coordinator/core/adoption.h"
#include "coordinator/core/rounds/expert_tokens.h"
#include "coordinator/core/rounds/rounds.h"
#include "coordinator/core/rounds/site_exchange.h"
#include "coordinator/core/shards/moves.h"
#include "coordinator/core/shards/servers.h"
#include "coordinator/core/stalls.h"

namespace atl::coord {
namespace {

// The shard of a push; null: the job has none of this number on this server.
const ShardDescriptor* FindShardOn(const Job& job, const NodeId& server, const PushId& push) {
  const auto index = static_cast<size_t>(push.shard);
  if (push.shard < 0 || index >= job.record.shards.size()) return nullptr;
  const ShardDescriptor& shard = job.record.shards[index];
  return FindHolder(shard, server) == nullptr ? nullptr : &shard;
}

// Returns what the server reports to have staged of the job's shards on it.
std::map<ContributionId, StagedShards> StagedOn(const Job& job, const NodeId& server,
                                                const HeldJob* held) {
  std::map<ContributionId, StagedShards> staged;
  if (held == nullptr) return staged;
  for (const PushId& push : held->staged) {
    const ShardDescriptor* shard = FindShardOn(job, server, push);
    const ContributionId id = ToContributionId(push);
    // Others of a server's long list take no memory.
    if (shard != nullptr && MayCount(job.rounds, id)) staged[id].Add(push, shard->elements);
  }
  return staged;
}

// The server holds what was decided or ordered after the store was written.
bool IsAhead(const Job& job, const HeldJob* held) {
  return held != nullptr && (held->version > job.decided_version() ||
                             held->generation > job.progress.plan_generation ||
                             held->placement > job.record.placement);
}

// Shards of its own that the server does not have: it was being filled when it died. What was
// filled for good is stored.
std::set<ShardId> LackedBy(const Job& job, const NodeId& server, const HeldJob& held) {
  std::set<ShardId> lacking;
  if (held.version == kNoVersion) return lacking;  // shards are assigned with version 0
  const std::set<ShardId> has(held.shards.begin(), held.shards.end());
  const std::set<ShardId> filled(held.filled.begin(), held.filled.end());
  for (const ShardId shard : job.ShardsOn(server)) {
    const Version filled_at = job.shard(shard).filled_at;
    const bool has_filled = filled_at == held.version && filled.contains(shard);
    if (!has.contains(shard) && !has_filled) lacking.insert(shard);
  }
  return lacking;
}

// Can the server be brought from its version to the newest decided one? "" or why not.
std::string WhyNotCatchUp(const Job& job, const NodeId& server, Version version,
                          const HeldJob* held) {
  const Version decided = job.decided_version();
  if (held == nullptr && decided != kNoVersion) {
    return "it came back without the job: its --state-dir is empty, or another one";
  }
  if (const auto& lacking = job.rounds.links.at(server).lacking; !lacking.empty()) {
    return absl::StrCat("it came back without shard ", *lacking.begin(),
                        ", which has to be filled: atoll refill ", job.id(), " ", server);
  }
  std::map<ContributionId, StagedShards> staged = StagedOn(job, server, held);
  for (Version v = version + 1; v <= decided; ++v) {
    const DecisionRecord* decision = job.rounds.FindDecision(v);
    if (decision == nullptr) {
      return absl::StrCat("it is at version ", version, " and the decision of version ", v,
                          " is not kept any more");
    }
    for (const DecisionParticipant& p : decision->participants) {
      if (!p.accepted) continue;
      std::optional<ShardId> lost;
      for (const ShardId shard : job.ShardsOn(server)) {
        if (!IsPushed(job, p.contribution, job.shard(shard), p.expert_tokens)) continue;
        if (!staged[p.contribution].Holds(shard)) lost = shard;
      }
      if (!lost) continue;
      return absl::StrCat("it has lost island ", p.contribution.island, "'s push of shard ", *lost,
                          ", which version ", v, " is made of");
    }
  }
  return "";
}

// Takes over what the server says that it has staged. `fresh`: and nothing else.
void TakeStaged(Job& job, const NodeId& server, const HeldJob* held, bool fresh) {
  std::map<ContributionId, std::vector<const PushId*>> pushes;
  if (held != nullptr) {
    for (const PushId& push : held->staged) pushes[ToContributionId(push)].push_back(&push);
  }
  for (const auto& [id, record] : job.rounds.contributions) {
    if (record.dropped) continue;
    StagedShards& staged = job.rounds.staged[id][server];
    if (fresh) staged = StagedShards();
    for (const PushId* push : pushes[id]) {
      const ShardDescriptor* shard = FindShardOn(job, server, *push);
      if (shard != nullptr) staged.Add(*push, shard->elements);
    }
    NoteStaged(job, job.rounds, id);
  }
  for (const auto& [id, of_it] : pushes) {
    if (!of_it.empty() && !MayCount(job.rounds, id)) {
      job.rounds.links.at(server).unknown.insert(id);
    }
  }
}

constexpr char kStoreIsOlder[] =
    "it holds more than this coordinator's store knows, which is older; when all of the job's "
    "servers are attached the job is rebuilt from them";

// Also of a job that has ended: it can be exported.
void TakeEndpoint(Job& job, const Server& server) {
  ForEachHolder(job.record.shards, [&](const ShardDescriptor&, ShardReplica& replica) {
    if (replica.server != server.record.name) return;
    if (replica.endpoint == server.endpoint && replica.public_key == server.public_key) return;
    SetHolder(server, replica);
    job.dirty.record = true;
    ++job.placement_revision;
  });
}

// Servers that forward to it get its new address, and that it may lack what it had.
void ResendForwarderAssignments(State& s, Job& job, const NodeId& server) {
  if (job.record.removed) return;  // its shards are those that are still to be deleted
  for (const ShardId id : job.ShardsOn(server)) {
    const NodeId active = GetActiveServer(job.shard(id));
    const auto link = job.rounds.links.find(active);
    if (active == server || link == job.rounds.links.end()) continue;
    link->second.assigned = false;
    link->second.again_at = s.now;
  }
}

void TakeHeld(State& s, Job& job, Server& server, const HeldJob* held, bool fresh) {
  const NodeId& name = server.record.name;
  ServerLink& link = job.rounds.links.at(name);
  const Version version = held == nullptr ? kNoVersion : held->version;
  const Version snapshot = held == nullptr ? kNoVersion : held->snapshot_version;
  TakeEndpoint(job, server);
  ResendForwarderAssignments(s, job, name);
  link.assigned = false;
  link.end_sent = false;
  NoteEnded(s, link, held != nullptr && held->ended);
  link.unknown.clear();
  link.again_at = link.exchange_again_at = s.now;
  link.base_fetched = kNoVersion;
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
  if (job.ended()) return;
  // Also of one that is not known: no round collects statistics of what it has lost, which would
  // never come, and for which what fills its shards would wait.
  TakeStaged(job, name, held, fresh);
  if (!link.known) return;
  AnswerEarlyPushes(s, job, job.rounds);
}

}  // namespace

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

void NoteAhead(State& s, Job& job, const NodeId& server) {
  ServerLink& link = job.rounds.links.at(server);
  link.ahead = true;
  link.known = false;
  link.again_at = s.now;
  SetProblem(s, job, server, kStoreIsOlder);
}

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

void OnLackedShardsForgotten(State& s, Job& job, const NodeId& server) {
  const auto link = job.rounds.links.find(server);
  Server* member = s.FindServer(server);
  const bool attached = member != nullptr && member->attached;
  if (link == job.rounds.links.end() || link->second.lacking.empty() || !attached) return;
  const HeldJob held = link->second.held;
  TakeHeld(s, job, *member, &held, /*fresh=*/true);
}

void OnServerHello(State& s, Server& server, const ServerHello& message, bool fresh) {
  server.endpoint = CleanText(message.endpoint, kEndpointBytesMax);
  server.public_key = CleanText(message.public_key, 64);
  server.memory_bytes = message.memory_bytes;
  server.site = CleanText(message.site, 64);
  s.server_sites.clear();
  server.site_only = message.site_only;
  for (const int64_t number : ListJobsOn(s, server.record.name)) {
    Job& job = *s.jobs.Find(number);
    // Its folder, with what it had received, may be another one.
    std::erase_if(job.moving.received, [&](const auto& received) {
      return received.first.server == server.record.name;
    });
    if (!job.rounds.links.contains(server.record.name)) continue;
    const auto held = std::find_if(message.jobs.begin(), message.jobs.end(),
                                   [&](const HeldJob& h) { return h.job == job.id(); });
    TakeHeld(s, job, server, held == message.jobs.end() ? nullptr : &*held, fresh);
  }
  ForgetHeld(s, server.record.name);
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

// Decisions wait for whole contributions: what completes none touches nothing. Of a round of
// islands of a hundred workers each server says this tens of thousands of times.
void OnPushStaged(State& s, Server& server, const PushStaged& message) {
  Job* job = s.FindJob(message.push.job);
  if (job == nullptr) return;
  const auto link = job->rounds.links.find(server.record.name);
  if (link == job->rounds.links.end() || !link->second.known) return;
  const ShardDescriptor* shard = FindShardOn(*job, server.record.name, message.push);
  if (shard == nullptr) return;
  const ContributionId id = ToContributionId(message.push);
  auto it = job->rounds.contributions.find(id);
  link->second.trouble.clear();  // its log takes writes
  if (it != job->rounds.contributions.end() && !it->second.dropped) {
    const size_t complete = job->rounds.complete.size();
    const auto& whole = job->rounds.complete;
    const bool is_new = std::find(whole.begin(), whole.end(), id) == whole.end();
    job->rounds.staged[id][server.record.name].Add(message.push, shard->elements);
    NoteStaged(*job, job->rounds, id);
    NotePush(s, *job, id.island);
    CalledIsland* call = FindIn(job->called, id.island);
    if (call != nullptr && is_new) call->since = s.now;
    if (job->rounds.complete.size() != complete) s.Touch(*job);
  } else if (!MayCount(job->rounds, id)) {
    link->second.unknown.insert(id);
    s.Touch(*job);
  }
}

}  // namespace atl::coord
