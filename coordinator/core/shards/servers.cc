#include "coordinator/core/shards/servers.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/protocol/fragments.h"
#include "common/protocol/limits.h"
#include "common/protocol/outer_optimizer.h"
#include "common/protocol/round_limit.h"
#include "coordinator/core/adoption.h"
#include "coordinator/core/islands/grouping.h"
#include "coordinator/core/islands/islands.h"
#include "coordinator/core/jobs.h"
#include "coordinator/core/relays.h"
#include "coordinator/core/rounds/round_length.h"
#include "coordinator/core/rounds/rounds.h"
#include "coordinator/core/rounds/signed_rounds.h"
#include "coordinator/core/rounds/site_exchange.h"
#include "coordinator/core/shards/move_orders.h"
#include "coordinator/core/shards/moves.h"
#include "coordinator/core/shards/placement.h"
#include "coordinator/core/shards/server_holdings.h"

namespace atl::coord {
namespace {

constexpr int kCommitsAtOnce = 64;
constexpr Duration kFaultRetry = std::chrono::seconds(10);

// A server's part in a job, which is touched; link null: it has none.
struct PartOfJob {
  Job* job = nullptr;
  ServerLink* link = nullptr;
};
PartOfJob FindServerLink(State& s, const Server& server, const JobId& job_id) {
  Job* job = s.FindJob(job_id);
  if (job == nullptr) return {};
  s.Touch(*job);
  return {job, FindIn(job->rounds.links, server.record.name)};
}

// The shards for which the server is active.
std::vector<ShardId> ListActiveOn(const Job& job, const NodeId& server) {
  std::vector<ShardId> active = job.ShardsOn(server);
  std::erase_if(active, [&](ShardId shard) { return GetActiveServer(job.shard(shard)) != server; });
  return active;
}

// The shards whose statistics a server sends: each shard's by one server. Empty: of all that it
// holds.
std::vector<ShardId> SelectStatisticsShards(const Job& job, const NodeId& server) {
  if (job.spec().outer.shard_copies == 1) return {};
  return ListActiveOn(job, server);
}

bool IsBehind(const Job& job, const ServerLink& link) {
  return link.version < job.decided_version();
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
  if (job.rounds.collecting && job.replicas().active.contains(server) &&
      !job.rounds.collecting->grams.contains(server)) {
    return true;
  }
  return WantsEnd(job, link) && link.snapshot_version < job.progress.version;
}

void SendAssignment(State& s, Job& job, const NodeId& server) {
  AssignShards assign{job.id(),
                      {},
                      job.spec().outer.learning_rate,
                      job.spec().outer.momentum,
                      GetSnapshotRounds(job),
                      MakeJobDefinition(job)};
  for (const ShardId id : job.ShardsOn(server)) {
    const ShardDescriptor& shard = job.shard(id);
    assign.shards.push_back(ToOwnedShard(shard));
    const ShardReplica* standby = FindReplica(shard, ReplicaRole::kStandby);
    if (standby == nullptr || standby->server == server) continue;
    const Server* to = s.FindServer(standby->server);
    if (to == nullptr) continue;
    assign.forwards.push_back({id, standby->endpoint, standby->public_key, to->record.incarnation});
  }
  s.SendToServer(server, std::move(assign));
  SendFencesTo(s, job, server);
}

void SendCommits(State& s, Job& job, const NodeId& server, Version from) {
  const Version to = std::min<Version>(job.decided_version(), from + kCommitsAtOnce);
  for (Version v = from + 1; v <= to; ++v) {
    const DecisionRecord* decision = job.rounds.FindDecision(v);
    if (decision == nullptr) return;
    CommitRound commit{job.id(), v, {}, decision->dropped, {}, decision->step};
    for (const DecisionParticipant& p : decision->participants) {
      if (p.accepted) commit.terms.push_back(MakeTerm(p));
    }
    if (v == job.decided_version()) commit.image = BuildJobImage(job, *decision);
    s.SendToServer(server, std::move(commit));
  }
}

// While a job is stale its servers only get requests for what they hold.
bool OwesDescription(const State& s, const NodeId& server, const ServerLink& link) {
  const Server* member = s.FindServer(server);
  return member != nullptr && member->attached && !link.described;
}

void RequestDescriptions(State& s, Job& job) {
  for (auto& [server, link] : job.rounds.links) {
    if (!OwesDescription(s, server, link) || s.now < link.again_at) continue;
    link.again_at = s.now + kRetryInterval;
    s.SendToServer(server, DescribeJob{job.id()});
  }
}

// By server that has a part in the job, with what is to move there.
std::map<NodeId, int64_t> CountBytesHeld(const Job& job) {
  const int64_t bytes = ServerBytesPerElement(job.spec());
  std::map<NodeId, int64_t> held;
  for (const auto& [server, link] : job.rounds.links) held[server];
  ForEachReplica(job.record.shards, [&](const ShardDescriptor& shard, const ShardReplica& replica) {
    const bool comes = replica.role == ReplicaRole::kJoining && replica.server != replica.replaces;
    held[replica.server] += IsHolder(replica) || comes ? shard.elements * bytes : 0;
  });
  return held;
}

int64_t FindBytes(const std::map<NodeId, int64_t>& by_server, const NodeId& server) {
  const auto found = by_server.find(server);
  return found == by_server.end() ? 0 : found->second;
}

// The job has ended, and the server is no further than is known.
bool SaysNothingNew(const Job& job, const NodeId& server, const HeldJob& held) {
  if (!job.ended() || job.record.removed || job.stale()) return false;
  const auto found = job.rounds.links.find(server);
  if (found == job.rounds.links.end() || !found->second.known) return true;
  const ServerLink& link = found->second;
  return held.ended == link.ended && held.version <= link.version &&
         held.snapshot_version <= link.snapshot_version &&
         !(link.end_sent && held.snapshot_version < held.version);
}

}  // namespace

void OnServerHeartbeat(State& s, Server& server, const ServerHeartbeat& message) {
  NoteUnreached(s, server, message.unreached);
  server.load = message;
  server.load.jobs.clear();
  for (const HeldJob& held : message.jobs) {
    RequestJobDescription(s, server.record.name, held.job);
    const Job* known = std::as_const(s.jobs).Find(held.job);
    // An orphaned job whose removal was lost in transit.
    if (known == nullptr && s.removed.contains(held.job)) {
      s.SendToServer(server.record.name, RemoveJob{held.job});
    }
    // A server may hold thousands that have ended.
    if (known == nullptr || SaysNothingNew(*known, server.record.name, held)) continue;
    const auto [job, link] = FindServerLink(s, server, held.job);
    if (link == nullptr || !link->known) continue;
    link->snapshot_version = std::max(link->snapshot_version, held.snapshot_version);
    NoteEnded(s, *link, held.ended);
    if (held.version > link->version) {
      OnRoundApplied(s, server, RoundApplied{held.job, held.version});
    }
    if (job->ended() && held.snapshot_version < held.version) link->end_sent = false;
    if (job->active() && link->assigned) SendFencesTo(s, *job, server.record.name);
  }
}

void OnShardsAssigned(State& s, Server& server, const ShardsAssigned& message) {
  const auto [job, link] = FindServerLink(s, server, message.job);
  if (link == nullptr || !link->known || link->assigned) return;
  if (message.placement < job->record.placement) return;  // of an earlier assignment
  link->assigned = true;
  link->trouble.clear();
  link->again_at = s.now;
  OnReleased(*job, server.record.name, message.placement);
  if (!TakenOver(*job)) return;
  for (const auto& [giver, since] : job->replicas().leaving) {
    if (const auto gives = job->rounds.links.find(giver); gives != job->rounds.links.end()) {
      gives->second.again_at = s.now;
    }
  }
  for (auto& [released, again_at] : job->moving.release_again_at) again_at = s.now;
}

void OnStatistics(State& s, Server& server, const Statistics& message) {
  const auto [job, link] = FindServerLink(s, server, message.job);
  if (link == nullptr || !job->rounds.collecting ||
      job->rounds.collecting->version != message.version ||
      job->rounds.collecting->contributions != message.contributions ||
      message.shards != SelectStatisticsShards(*job, server.record.name)) {
    return;
  }
  std::set<int32_t> expected;
  for (const ShardId shard : ListActiveOn(*job, server.record.name)) {
    const ShardDescriptor& held = job->shard(shard);
    if (!IsInTurn(message.version, held, FragmentsFrom(job->spec().outer))) continue;
    expected.insert(held.layer);
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
  for (const ContributionParts& compared : SelectPartsOn(*job, server.record.name)) {
    if (std::find(message.unfit.begin(), message.unfit.end(), compared.contribution) !=
        message.unfit.end()) {
      job->rounds.collecting->unfit.insert(compared.contribution);
    }
  }
}

void OnRoundApplied(State& s, Server& server, const RoundApplied& message) {
  const auto [job, link] = FindServerLink(s, server, message.job);
  if (link == nullptr || !link->known || message.version <= link->version) return;
  if (job->record.removed) return;
  if (message.version > job->decided_version()) {
    return NoteAhead(s, *job, server.record.name);
  }
  link->version = message.version;
  link->trouble.clear();
  link->again_at = s.now;
}

void OnServerFault(State& s, Server& server, const ServerFault& message) {
  const auto [job, link] = FindServerLink(s, server, message.job);
  if (link == nullptr || job->ended()) return;
  const std::string trouble =
      absl::StrCat("parameter server ", server.record.name, ": ", CleanText(message.reason));
  if (!link->known) {
    // The server reports how its state is damaged.
    if (!message.passing) SetProblem(s, *job, server.record.name, CleanText(message.reason));
    return;
  }
  if (!message.passing) {
    link->assigned = false;
    link->again_at = s.now + kFaultRetry;
  }
  link->trouble = trouble;
  if (std::exchange(link->logged_trouble, trouble) == trouble) return;
  s.Log(job->id(), Severity::kWarning, absl::StrCat(trouble, "; retrying"));
}

// ------------------------------------------------------------------------------- what is owed ----

void PumpServers(State& s, Job& job) {
  if (job.stale()) return RequestDescriptions(s, job);
  PumpMoves(s, job);
  if (!job.ended()) DropUnknown(s, job);
  const bool fences_changed = std::exchange(job.rounds.fences_changed, false) && job.active();
  for (auto& [server, link] : job.rounds.links) {
    // Together with the assignment otherwise.
    if (fences_changed && link.assigned) SendFencesTo(s, job, server);
    if (!Owes(job, server, link) || s.now < link.again_at) continue;
    link.again_at = s.now + kRetryInterval;
    const bool gives = job.active() && !link.assigned && job.replicas().leaving.contains(server);
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
                                               SelectStatisticsShards(job, server),
                                               SelectPartsOn(job, server)});
    }
  }
}

void RetryServersNow(State& s, Job& job) {
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
    const Server* member = s.FindServer(server);
    const bool attached = member != nullptr && member->attached;
    absl::StrAppend(&missing, missing.empty() ? "parameter server " : ", ", server, " (",
                    member == nullptr      ? "never seen"
                    : !attached            ? member->reason
                    : link.problem.empty() ? "no answer yet"
                                           : link.problem,
                    ")");
    if (attached && !link.problem.empty() && !link.ahead) wrong = true;
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

void SetHolder(const Server& server, ShardReplica& replica) {
  replica.server = server.record.name;
  replica.endpoint = server.endpoint;
  replica.public_key = server.public_key;
}

void LinkHolders(State& s, Job& job) {
  ForEachHolder(job.EditRecord().shards, [&](const ShardDescriptor&, ShardReplica& replica) {
    SetHolder(*s.FindServer(replica.server), replica);
    ServerLink& link = job.rounds.links[replica.server];
    link.known = true;
    link.again_at = link.exchange_again_at = s.now;
  });
}

std::vector<PlacementServer> ListServers(const State& s, const std::vector<const Worker*>& leaders,
                                         const std::function<bool(const Server&)>& wanted) {
  std::vector<PlacementServer> servers;
  for (const auto& [name, member] : s.servers) {
    if (!wanted(member)) continue;
    PlacementServer& server = servers.emplace_back();
    server.name = name;
    server.cost = ComputeAccessCostFromLeaders(s, member, leaders).cost;
    server.free_bytes = FreeBytes(s, member);
    server.site = GetServerSite(s, member);
  }
  return servers;
}

void NoteServerUse(State& s, Job& job) {
  ForgetServerUse(s, job);
  job.bytes_held = CountBytesHeld(job);
  for (const auto& [server, bytes] : job.bytes_held) {
    State::ServerUse& use = s.server_use[server];
    use.bytes += bytes;
    use.jobs.insert(job.record.number);
  }
}

void ForgetServerUse(State& s, Job& job) {
  for (const auto& [server, bytes] : std::exchange(job.bytes_held, {})) {
    const auto use = s.server_use.find(server);
    use->second.bytes -= bytes;
    use->second.jobs.erase(job.record.number);
    if (use->second.jobs.empty()) s.server_use.erase(use);
  }
}

std::set<int64_t> ListJobsOn(const State& s, const NodeId& server) {
  const auto use = s.server_use.find(server);
  std::set<int64_t> jobs = use == s.server_use.end() ? std::set<int64_t>() : use->second.jobs;
  s.jobs.ForEachOpened([&](const Job& job) {
    if (job.dirty.record) jobs.insert(job.record.number);
  });
  return jobs;
}

int64_t FreeBytes(const State& s, const Server& server) {
  const NodeId& name = server.record.name;
  const auto use = s.server_use.find(name);
  int64_t free = server.memory_bytes - (use == s.server_use.end() ? 0 : use->second.bytes);
  s.jobs.ForEachOpened([&](const Job& job) {
    if (!job.dirty.record) return;
    free += FindBytes(job.bytes_held, name) - FindBytes(CountBytesHeld(job), name);
  });
  // The bytes that a server reports of unknown jobs may be of any size.
  const auto take = [&](int64_t bytes) { free = std::max(-kMaxNumber, free - bytes); };
  for (const auto& [job, holders] : s.held) {
    const auto held = holders.find(server.record.name);
    if (held == holders.end() || !held->second.described) continue;
    const AssignShards& assignment = held->second.described->assignment;
    const JobSpec& spec = assignment.definition.spec;
    if (!ValidateOuterChoice(spec.outer).ok()) continue;
    for (const OwnedShard& shard : assignment.shards) {
      take(shard.elements * ServerBytesPerElement(spec));
    }
  }
  return free;
}

bool HasRoom(const State& s, const Job& job) {
  for (const auto& [name, link] : job.rounds.links) {
    const Server* server = s.FindServer(name);
    if (server == nullptr) return false;
    int64_t free = FreeBytes(s, *server);
    free -= job.StagedBytes(name);
    s.jobs.ForEachLive([&](const Job& other) {
      if (other.ended() || !other.rounds.links.contains(name)) return;
      free -= other.StagedBytes(name) * StagedContributions(other);
    });
    if (free < 0) return false;
  }
  return true;
}

}  // namespace atl::coord
