#include "coordinator/core/shards/refill.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/plural.h"
#include "common/protocol/fragments.h"
#include "common/protocol/outer_optimizer.h"
#include "coordinator/core/islands/grouping.h"
#include "coordinator/core/shards/failover.h"
#include "coordinator/core/shards/moves.h"
#include "coordinator/core/shards/placement.h"
#include "coordinator/core/shards/servers.h"

namespace atl::coord {
namespace {

constexpr int kRoundsNamedMost = 8;
constexpr int kIslandsNamedMost = 8;  // of a round

// Null: none fills the shard.
const ShardReplica* FindFilled(const ShardDescriptor& shard) {
  return FindReplica(shard, [](const ShardReplica& replica) {
    return replica.role == ReplicaRole::kJoining && replica.fill;
  });
}

ShardList ListFilled(const Job& job) {
  ShardList filled;
  if (!job.replicas().fills) return filled;
  for (const ShardDescriptor& shard : job.record.shards) {
    if (FindFilled(shard) != nullptr) filled.push_back(&shard);
  }
  return filled;
}

// A round after version `base`, up to `version`, concerns one of them.
bool Concerns(const Job& job, Version base, Version version, const ShardList& shards) {
  return std::any_of(shards.begin(), shards.end(), [&](const ShardDescriptor* shard) {
    return HasTurnSince(base, version, *shard, FragmentsFrom(job.spec().outer));
  });
}

// "round 8: island 0 of w-0, island 1 of w-1".
std::string NameContributions(const DecisionRecord& decision) {
  std::string text = absl::StrCat("round ", decision.round);
  int named = 0;
  for (const DecisionParticipant& p : decision.participants) {
    if (!p.accepted) continue;
    if (named == kIslandsNamedMost) return absl::StrCat(text, " and more");
    absl::StrAppend(&text, named++ == 0 ? ": " : ", ", "island ", p.contribution.island, " of ",
                    p.worker);
  }
  return text;
}

// The parameters that lost shards get, and the version that has them.
struct Fill {
  Version version = 0;  // as JobRecord::fill_version
  Version base = 0;     // of theta_base
};

// Chooses a fill from the newest theta_base. A version that another theta_base was to fill, or
// whose bits of these shards (`lost`) an island may have pulled, is not filled otherwise. REQUIRES:
// there is a source.
Fill ChooseFill(const Job& job, const std::map<Version, std::vector<FillSource>>& sources,
                const ShardList& lost) {
  const JobRecord& record = job.record;
  const Version decided = job.decided_version();
  if (sources.contains(decided)) return {};
  const bool fills = job.replicas().fills;
  const bool others = fills && record.fill_version != 0;
  const bool goes_on = others && sources.contains(record.fill_base) &&
                       std::all_of(lost.begin(), lost.end(), [](const ShardDescriptor* shard) {
                         return FindFilled(*shard) != nullptr;
                       });
  if (goes_on) return {record.fill_version, record.fill_base};
  const Version base = sources.rbegin()->first;
  // Its bits are those of the decided version.
  if (!fills && !Concerns(job, base, decided, lost)) return {decided, base};
  // A round for every fragment: an island pulls all layers of the version, whatever its own one is.
  const Version after = others ? std::max(decided, record.fill_version) : decided;
  return {after + FragmentsFrom(job.spec().outer).count(), base};
}

// Shards of the server that another one had received whole before: they are not lost, and it takes
// over with the rest.
std::set<ShardId> ListReceived(const State& s, const Job& job, const NodeId& server) {
  std::set<ShardId> received;
  for (const ReplicaId& id : job.replicas().joining) {
    const ShardDescriptor& shard = job.shard(id.shard);
    const ShardReplica& replica = *FindJoining(shard, id.server);
    if (!replica.fill && replica.replaces == server && GetActiveServer(shard) == server &&
        IsReceived(job, id) && MayReceive(s, id.server)) {
      received.insert(id.shard);
    }
  }
  return received;
}

ShardList ListLost(const Job& job, const NodeId& server, const std::set<ShardId>& received) {
  const std::set<ShardId>& lacking = job.rounds.links.at(server).lacking;
  ShardList lost;
  for (const ShardDescriptor& shard : job.record.shards) {
    if (GetActiveServer(shard) != server || received.contains(shard.shard)) continue;
    if (lacking.empty() || lacking.contains(shard.shard)) lost.push_back(&shard);
  }
  return lost;
}

// Servers that may be filled with them; the one that has lost them has their memory free again.
std::vector<PlacementServer> FillTargets(const State& s, const Job& job, const NodeId& server,
                                         const ShardList& lost) {
  const ServerLink& loser = job.rounds.links.at(server);
  const bool lacks = loser.empty || !loser.lacking.empty();
  const auto takes = [&](const Server& member) {
    const NodeId& name = member.record.name;
    const auto link = job.rounds.links.find(name);
    const bool has_own = link == job.rounds.links.end() || link->second.known;
    return MayReceive(s, name) && !member.site_only && !IsReleasing(job, name) &&
           !HoldsOldShards(s, job, name) && (has_own || (name == server && lacks));
  };
  std::vector<PlacementServer> servers = ListServers(s, ListIslandLeaders(s, job), takes);
  for (PlacementServer& target : servers) {
    if (target.name != server) continue;
    for (const ShardDescriptor* shard : lost) {
      target.free_bytes += shard->elements * ServerBytesPerElement(job.spec());
    }
  }
  return servers;
}

// The server is active for shards besides those that are lost.
bool HoldsOthers(const Job& job, const NodeId& server, const ShardList& lost) {
  return std::count_if(job.record.shards.begin(), job.record.shards.end(),
                       [&](const ShardDescriptor& shard) {
                         return GetActiveServer(shard) == server;
                       }) > std::ssize(lost);
}

// Describes what is filled, and which update is lost by it.
std::string WhyFilled(const Job& job, const NodeId& server) {
  const JobRecord& record = job.record;
  std::string why = absl::StrCat("a user says that server ", server, " has lost them");
  if (record.fill_version == 0) return why;
  const ShardList filled = ListFilled(job);
  const std::string lost = LostUpdates(job, filled, record.fill_base);
  absl::StrAppend(&why, "; no island has version ", job.decided_version(),
                  ": theta_base of version ", record.fill_base, " fills ", filled.size(),
                  " shards, as version ", record.fill_version);
  if (!lost.empty()) absl::StrAppend(&why, "; their update of ", lost, " is lost");
  return why;
}

// Returns whether all of them are being filled so already, on servers that are there.
bool GoesOn(const State& s, const Job& job, const Fill& fill, const ShardList& lost) {
  if (fill.version != job.record.fill_version || fill.base != job.record.fill_base) return false;
  return std::all_of(lost.begin(), lost.end(), [&](const ShardDescriptor* shard) {
    const ShardReplica* filled = FindFilled(*shard);
    return filled != nullptr && MayReceive(s, filled->server);
  });
}

// Fills the shards of the server on those that `placed` names. What joins otherwise is dropped, but
// what has been received.
void BeginFill(State& s, Job& job, const NodeId& server, const Fill& fill,
               const std::set<ShardId>& received, const std::vector<ShardDescriptor>& placed) {
  DropReplicas(job, [&](const ShardDescriptor& shard, const ShardReplica& replica) {
    if (replica.role != ReplicaRole::kJoining) return false;
    const bool stays = replica.fill ? replica.replaces != server
                                    : replica.replaces == server && received.contains(shard.shard);
    return !stays;
  });
  JobRecord& record = job.EditRecord();
  for (const ShardDescriptor& place : placed) {
    ShardDescriptor& shard = record.shards[static_cast<size_t>(place.shard)];
    const NodeId target = GetActiveServer(place);
    // One that was to be filled before is not released.
    EraseLeaving(shard, target);
    shard.replicas.push_back(
        {.server = target, .role = ReplicaRole::kJoining, .replaces = server, .fill = true});
    SortByRole(shard);
  }
  record.fill_version = fill.version;
  record.fill_base = fill.base;
  record.moves_reason = WhyFilled(job, server);
  job.rounds.collecting.reset();  // a new window will open
  job.moving =
      Moving{.received = std::move(job.moving.received), .balanced_at = job.moving.balanced_at};
  s.Log(job.id(), Severity::kWarning,
        absl::StrCat(CountText(std::ssize(placed), "shard"), " of parameter server ", server,
                     " to be filled from an island: ", record.moves_reason));
}

}  // namespace

absl::Status RefillShards(State& s, Job& job, const NodeId& server) {
  const auto link = job.rounds.links.find(server);
  const auto refuse = [&](auto... args) {
    return absl::FailedPreconditionError(
        absl::StrCat("job ", job.id(), " cannot be refilled: ", args...));
  };
  if (link == job.rounds.links.end()) return refuse("server ", server, " holds no shard of it");
  if (!job.active() || job.stale() || job.progress.version == kNoVersion) {
    return refuse("it does not run, or has no committed version yet");
  }
  if (link->second.known) return refuse("server ", server, " has its shards: nothing is lost");
  DropHolder(s, job, server);  // what others hold is not lost
  if (!job.HoldsShards(server)) return absl::OkStatus();
  if (const NodeId counterpart = FindUnavailableCounterpart(s, job, server); !counterpart.empty()) {
    return refuse("server ", counterpart,
                  " has copies of its shards, and is unavailable: start it; if they are ",
                  "lost, too, start it with an empty folder");
  }
  const auto sources = FindFillSources(s, job);
  if (sources.empty()) {
    return refuse("no island that is attached and ready has parameters (theta_base) to fill them ",
                  "from: wait for one and try again, or start server ", server,
                  " with the folder that it had, or with a copy of that; if there is none, atoll ",
                  "recover writes the newest whole version of what is left");
  }
  const bool exact = sources.contains(job.decided_version());
  // Chunks that have arrived elsewhere are of no use for another version.
  const std::set<ShardId> received = exact ? ListReceived(s, job, server) : std::set<ShardId>();
  const ShardList lost = ListLost(job, server, received);
  const Fill fill = ChooseFill(job, sources, lost);
  if (!exact && !link->second.lacking.empty() && HoldsOthers(job, server, lost)) {
    return refuse("no island has version ", job.decided_version(), ", and server ", server,
                  " still has other shards: start it with an empty folder (keep this one), and ",
                  "all of them are filled");
  }
  std::vector<ShardDescriptor> copies;
  for (const ShardDescriptor* shard : lost) copies.push_back(*shard);
  const auto placed = PlaceShards(std::move(copies), FillTargets(s, job, server, lost),
                                  ServerPeakBytesPerElement(job.spec()));
  if (!placed.ok()) {
    return refuse(placed.status().message(), "; start server ", server,
                  " with an empty folder, or another one");
  }
  ForgetStandbys(s, job, server);  // only now: what is refused changes nothing
  if (!job.HoldsShards(server) || GoesOn(s, job, fill, lost)) return absl::OkStatus();
  BeginFill(s, job, server, fill, received, *placed);
  return absl::OkStatus();
}

std::map<Version, std::vector<FillSource>> FindFillSources(const State& s, const Job& job) {
  std::map<Version, std::vector<FillSource>> sources;
  for (const auto& [id, island] : job.islands) {
    const Worker* worker = s.FindWorker(island.worker);
    if (island.incarnation == 0 || worker == nullptr || !worker->attached || !worker->progress) {
      continue;
    }
    const IslandProgress& progress = *worker->progress;
    if (progress.job == job.id() && progress.generation == island.generation && progress.ready &&
        progress.base_version >= 0 && progress.base_version <= job.progress.version) {
      sources[progress.base_version].push_back({worker, &island});
    }
  }
  return sources;
}

Version GetFillBase(const Job& job) {
  return job.record.fill_version == 0 ? job.progress.version : job.record.fill_base;
}

bool HasExactSource(const State& s, const Job& job) {
  const JobRecord& record = job.record;
  if (record.fill_version != job.progress.version) return false;
  const ShardList filled = ListFilled(job);
  return !filled.empty() && !Concerns(job, record.fill_base, record.fill_version, filled) &&
         FindFillSources(s, job).contains(record.fill_version);
}

bool IsBeforeFill(const Job& job) {
  return job.progress.version < job.record.fill_version && job.replicas().fills;
}

bool IsBeingFilled(const Job& job, const NodeId& server) {
  if (!job.replicas().fills || job.rounds.links.at(server).known) return false;
  const std::vector<ShardId>& held = job.ShardsOn(server);
  return std::all_of(held.begin(), held.end(), [&](ShardId id) {
    const ShardReplica* filled = FindFilled(job.shard(id));
    return filled != nullptr && filled->replaces == server;
  });
}

std::string LostUpdates(const Job& job, const ShardList& shards, Version base) {
  std::string text;
  int named = 0, more = 0;
  Version oldest = kNoVersion;  // of the decisions that are kept
  for (const auto& [round, decision] : job.rounds.decisions) {
    if (oldest == kNoVersion) oldest = decision.version;
    if (decision.version <= base || decision.participants.empty() ||
        !Concerns(job, decision.version - 1, decision.version, shards)) {
      continue;
    }
    if (named == kRoundsNamedMost) {
      ++more;
      continue;
    }
    absl::StrAppend(&text, named++ == 0 ? "" : ", ", "version ", decision.version, " (",
                    NameContributions(decision), ")");
  }
  if (oldest > base + 1) {
    text = absl::StrCat("all from version ", base + 1, " to ", oldest - 1, text.empty() ? "" : ", ",
                        text);
  }
  return more == 0 ? text : absl::StrCat(text, " and ", more, " more");
}

}  // namespace atl::coord
