#include "coordinator/core/shards/moves.h"

#include <algorithm>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/bytes_text.h"
#include "common/protocol/outer_optimizer.h"
#include "coordinator/core/islands/grouping.h"
#include "coordinator/core/rounds/round_decision.h"
#include "coordinator/core/rounds/rounds.h"
#include "coordinator/core/shards/move_plan.h"
#include "coordinator/core/shards/placement.h"
#include "coordinator/core/shards/refill.h"
#include "coordinator/core/shards/servers.h"

namespace atl::coord {
namespace {

constexpr int64_t kBatchBytesMost = int64_t{1} << 30;
constexpr Duration kBetweenBalances = std::chrono::hours(1);
constexpr Duration kHoldFirst = std::chrono::seconds(5);
constexpr Duration kPlanLater = std::chrono::minutes(10);
constexpr Duration kHoldMost = std::chrono::seconds(60);

// The first ones that join, of so many bytes.
std::vector<ReplicaId> NextBatch(const Job& job) {
  std::vector<ReplicaId> batch;
  int64_t bytes = 0;
  for (const ReplicaId& id : job.replicas().joining) {
    bytes += CountBytes(job, {id});
    if (!batch.empty() && bytes > job.moving.batch_bytes) break;
    batch.push_back(id);
  }
  return batch;
}

// Drops replicas for which joining makes no sense any more. True if there were any.
bool DropMoot(State& s, Job& job) {
  // Before that nothing shows that the store has not missed a switch.
  const bool known = AllServersKnown(job);
  const auto moot = [&](const ShardDescriptor&, const ShardReplica& replica) {
    if (replica.role != ReplicaRole::kJoining) return false;
    if (!replica.fill) return known && !MayReceive(s, replica.server);
    // A lost shard stays one: it waits for the server, or for a user to say it again.
    const auto link = job.rounds.links.find(replica.replaces);
    return link != job.rounds.links.end() && link->second.known;
  };
  return !DropReplicas(job, moot).empty();
}

std::vector<PlacementServer> ServersFor(const State& s, const Job& job) {
  std::vector<PlacementServer> servers =
      ListServers(s, ListIslandLeaders(s, job), [](const Server& m) { return !m.site_only; });
  for (PlacementServer& server : servers) {
    const Server& member = *s.FindServer(server.name);
    const auto link = job.rounds.links.find(server.name);
    server.leaves = member.record.draining;
    server.takes = MayReceive(s, server.name) && !IsReleasing(job, server.name) &&
                   s.now - member.attached_at >= s.options.rebalance_after &&
                   (link == job.rounds.links.end() || link->second.known) &&
                   !HoldsOldShards(s, job, server.name);
  }
  std::erase_if(servers, [&](const PlacementServer& server) {
    return !server.takes && !job.rounds.links.contains(server.name);
  });
  return servers;
}

bool PlanMoves(State& s, Job& job) {
  if (job.progress.state != JobState::kRunning && job.progress.state != JobState::kPaused) {
    return false;
  }
  if (!AllServersKnown(job) || s.now < job.moving.plan_again_at) return false;
  job.moving.plan_again_at = s.now + kRetryInterval;
  const std::optional<Instant>& balanced_at = job.moving.balanced_at;
  // A server that has attached since is to get its share.
  const bool balanced = balanced_at && s.now - *balanced_at < kBetweenBalances &&
                        std::ranges::none_of(s.servers, [&](const auto& entry) {
                          return entry.second.attached && entry.second.attached_at > *balanced_at;
                        });
  MovePlan plan =
      PlanShardMoves(job.record.shards, job.spec().outer.shard_copies, ServersFor(s, job),
                     ServerPeakBytesPerElement(job.spec()), balanced);
  job.moving.trouble = plan.trouble;
  if (plan.moves.empty()) return false;
  if (plan.balances) job.moving.balanced_at = s.now;
  JobRecord& record = job.EditRecord();
  for (const ReplicaMove& move : plan.moves) {
    ShardDescriptor& shard = record.shards[static_cast<size_t>(move.shard)];
    shard.replicas.push_back(
        {.server = move.to, .role = ReplicaRole::kJoining, .replaces = move.replaces});
    SortByRole(shard);
  }
  record.moves_reason = plan.reason;
  s.Log(job.id(), Severity::kInfo,
        absl::StrCat(plan.moves.size(), " shards are to move: ", plan.reason));
  return true;
}

// A shard that did not arrive while a round was held as long as any is: rounds go on without it.
bool GivesUp(const Job& job) {
  const Moving& moving = job.moving;
  return moving.version != job.progress.version && moving.version != kNoVersion &&
         moving.batch.size() == 1 && !GetJoining(job, moving.batch[0]).fill &&
         moving.hold == kHoldMost;
}

void GiveUpMoves(State& s, Job& job) {
  const ReplicaId stuck = job.moving.batch[0];
  DropReplicas(job, [](const ShardDescriptor&, const ShardReplica& replica) {
    return replica.role == ReplicaRole::kJoining && !replica.fill;
  });
  job.moving = Moving{.balanced_at = job.moving.balanced_at};
  job.moving.plan_again_at = s.now + kPlanLater;
  s.Log(job.id(), Severity::kWarning,
        absl::StrCat("shard ", stuck.shard, " does not arrive at parameter server ", stuck.server,
                     ": it stays where it is; moves are planned again in ", Seconds(kPlanLater),
                     " s"));
}

// The batch is as large as fits between two rounds.
void AdaptBatch(Job& job) {
  Moving& moving = job.moving;
  if (moving.version == job.progress.version) return;
  const bool missed = moving.version != kNoVersion && !moving.batch.empty();
  if (missed && moving.batch.size() == 1) {
    moving.hold = std::min(2 * moving.hold, kHoldMost);
  } else if (missed) {
    moving.batch_bytes = CountBytes(job, moving.batch) / 2;
  }
  moving.version = job.progress.version;
  moving.batch.clear();
}

bool MaySwitch(const Job& job, const std::vector<ReplicaId>& batch) {
  if (job.rounds.collecting || job.decided_version() != job.progress.version) return false;
  if (std::ranges::all_of(batch, [&](const ReplicaId& id) { return GetJoining(job, id).fill; })) {
    return true;
  }
  // The staged part of a shard that moves is pushed again: its island must be there.
  return std::ranges::all_of(job.rounds.complete, [&](const ContributionId& id) {
    const IslandRecord& island = job.islands.at(id.island);
    return island.generation == id.generation && island.incarnation != 0;
  });
}

void ForgetStaged(Job& job, const NodeId& server, ShardId shard) {
  for (auto& [id, staged] : job.rounds.staged) {
    if (const auto on = staged.find(server); on != staged.end()) on->second.Forget(shard);
  }
}

// Voids what islands and servers know of holders: the newest placement names the standbys, too.
void ForgetHolders(State& s, Job& job) {
  ++job.placement_revision;
  job.rounds.transfer_plans.clear();
  job.rounds.push_plan = PushPlan();
  job.rounds.collecting.reset();  // a new window will open
  for (const auto& [id, contribution] : job.rounds.contributions) {
    if (!contribution.dropped) NoteStaged(job, job.rounds, id);
  }
  if (job.spec().outer.shard_copies == 1) return;
  for (auto& [server, link] : job.rounds.links) {
    link.assigned = false;
    link.again_at = s.now;
  }
}

// After the placement has changed: links are those of servers that hold shards.
void RefreshLinks(State& s, Job& job, const std::set<NodeId>& changed) {
  for (const NodeId& server : changed) {
    if (!job.HoldsShards(server)) {
      job.rounds.links.erase(server);
      continue;
    }
    ServerLink& link = job.rounds.links[server];
    link.assigned = false;
    link.again_at = s.now;
    const auto replaces = [&](const ReplicaId& id) {
      return GetJoining(job, id).fill && GetJoining(job, id).replaces == server;
    };
    const std::vector<ReplicaId>& joining = job.replicas().joining;
    const bool lacks = std::ranges::any_of(joining, replaces);
    if (!s.FindServer(server)->attached || lacks) continue;
    link.known = true;
    link.ahead = false;
    link.problem.clear();
    link.trouble.clear();
    link.version = std::max(link.version, job.progress.version);
  }
}

// The joining replica holds the shard from now on, and the one that it replaces leaves. A standby
// becomes active then, as it has all that is staged, and the new one its standby. Returns the
// server that leaves; empty: none does.
NodeId TakeOver(const State& s, Job& job, ShardDescriptor& shard, const NodeId& server) {
  const NodeId replaced = FindJoining(shard, server)->replaces;
  if (ShardReplica* leaves = FindHolder(shard, replaced); leaves != nullptr) {
    leaves->role = ReplicaRole::kLeaving;
    leaves->since = job.record.placement;
  }
  for (const NodeId& changed : {replaced, server}) ForgetStaged(job, changed, shard.shard);
  EraseLeaving(shard, server);
  ShardReplica& joined = *FindJoining(shard, server);
  joined = {.server = server, .role = ReplicaRole::kStandby};
  SetHolder(*s.FindServer(server), joined);
  SortByRole(shard);
  shard.replicas.front().role = ReplicaRole::kActive;
  return replaced;
}

// Describes what becomes of shards that are filled, and what they lack.
std::string FilledText(const Job& job, Version base, const std::string& lost_update) {
  const bool has_state = !GetOuterOptimizer(job.spec().outer).slots.empty();
  return absl::StrCat(
      "are filled from theta_base of an island: their parameters are those of version ", base,
      base == job.progress.version ? "" : absl::StrCat(", as version ", job.progress.version),
      has_state ? ", their outer momentum is lost and begins at zero" : "",
      KeepsAverage(job.spec()) ? ", their moving average begins anew" : "",
      lost_update.empty() ? "" : absl::StrCat("; their update of ", lost_update, " is lost"));
}

void SwitchShards(State& s, Job& job) {
  const std::vector<ReplicaId> batch = std::exchange(job.moving.batch, {});
  const std::string bytes = BytesText(CountBytes(job, batch));
  const Version version = job.progress.version, base = GetFillBase(job);
  JobRecord& record = job.EditRecord();
  ChangePlacement(job);
  std::set<NodeId> changed;
  ShardList filled;
  for (const ReplicaId& id : batch) {
    ShardDescriptor& shard = record.shards[static_cast<size_t>(id.shard)];
    if (GetJoining(job, id).fill) {
      filled.push_back(&shard);
      shard.filled_at = version;
      shard.filled_age = version - base;
    }
    changed.insert(id.server);
    if (NodeId left = TakeOver(s, job, shard, id.server); !left.empty()) changed.insert(left);
  }
  ForgetHolders(s, job);
  RefreshLinks(s, job, changed);
  Moving& moving = job.moving;
  moving.received.clear();
  moving.held_since.reset();
  moving.hold = kHoldFirst;
  moving.batch_bytes = std::min(2 * moving.batch_bytes, kBatchBytesMost);
  moving.again_at = s.now;
  if (filled.empty()) {
    s.Log(job.id(), Severity::kInfo,
          absl::StrCat(batch.size(), " shards, ", bytes, ", have moved at version ", version));
    return;
  }
  // Their moments begin at zero: no island takes them for an average.
  if (job.progress.averaged_version != kNoVersion) {
    job.EditProgress().averaged_version = kNoVersion;
  }
  const std::string lost_update = LostUpdates(job, filled, base);
  if (!lost_update.empty()) record.lost_update = lost_update;
  s.Log(job.id(), Severity::kWarning,
        absl::StrCat(batch.size(), " lost shards, ", bytes, ", ",
                     FilledText(job, base, lost_update)));
}

}  // namespace

bool MayReceive(const State& s, const NodeId& server) {
  const Server* member = s.FindServer(server);
  return member != nullptr && member->attached && !member->record.draining;
}

bool IsReleasing(const Job& job, const NodeId& server) {
  return job.replicas().leaving.contains(server) && !job.HoldsShards(server) &&
         !job.replicas().targets.contains(server);
}

bool HoldsOldShards(const State& s, const Job& job, const NodeId& server) {
  const auto held = s.held.find(job.id());
  return held != s.held.end() && held->second.contains(server) &&
         !job.rounds.links.contains(server);
}

int64_t CountBytes(const Job& job, const std::vector<ReplicaId>& replicas) {
  int64_t elements = 0;
  for (const ReplicaId& id : replicas) elements += job.shard(id.shard).elements;
  return elements * ServerBytesPerElement(job.spec());
}

bool IsReceived(const Job& job, const ReplicaId& replica) {
  const auto found = job.moving.received.find(replica);
  return found != job.moving.received.end() && found->second == job.progress.version;
}

std::set<NodeId> DropReplicas(
    Job& job, const std::function<bool(const ShardDescriptor&, const ShardReplica&)>& which) {
  std::set<ReplicaId> dropped;
  std::set<NodeId> servers;
  ForEachReplica(job.record.shards, [&](const ShardDescriptor& shard, const ShardReplica& replica) {
    if (replica.role == ReplicaRole::kLeaving || !which(shard, replica)) return;
    dropped.insert({shard.shard, replica.server});
    servers.insert(replica.server);
    if (IsHolder(replica)) ForgetStaged(job, replica.server, shard.shard);
  });
  if (dropped.empty()) return servers;
  for (const ReplicaId& id : dropped) {
    ShardDescriptor& shard = job.EditRecord().shards[static_cast<size_t>(id.shard)];
    // A server may hold what it receives in the place of that.
    std::erase_if(shard.replicas, [&](const ShardReplica& replica) {
      return replica.server == id.server && replica.role != ReplicaRole::kLeaving &&
             which(shard, replica);
    });
    job.moving.received.erase(id);
  }
  std::set<NodeId> off = servers;
  std::erase_if(off, [&](const NodeId& server) {
    return job.HoldsShards(server) || job.replicas().targets.contains(server);
  });
  JobRecord& record = job.EditRecord();
  if (!off.empty()) ChangePlacement(job);
  for (const ReplicaId& id : dropped) {
    if (!off.contains(id.server)) continue;
    record.shards[static_cast<size_t>(id.shard)].replicas.push_back(
        {.server = id.server, .role = ReplicaRole::kLeaving, .since = record.placement});
  }
  std::erase_if(job.moving.received,
                [&](const auto& received) { return off.contains(received.first.server); });
  job.moving.batch.clear();  // its requests are not repeated any more
  job.moving.held_since.reset();
  return servers;
}

void OnHoldersDropped(State& s, Job& job, const std::set<NodeId>& servers) {
  for (const NodeId& server : servers) {
    if (!job.HoldsShards(server)) job.rounds.links.erase(server);
  }
  job.moving.plan_again_at = s.now;
  ForgetHolders(s, job);
}

void OnShardsReceived(State& s, Server& server, const ShardsReceived& message) {
  Job* job = s.FindJob(message.job);
  if (job == nullptr || message.version != job->progress.version) return;
  s.Touch(*job);
  for (const ShardId shard : message.shards) {
    if (shard < 0 || static_cast<size_t>(shard) >= job->record.shards.size()) continue;
    const ReplicaId id{shard, server.record.name};
    if (FindJoining(job->shard(shard), id.server) == nullptr) continue;
    job->moving.received[id] = message.version;
  }
}

bool TakesPartInMoves(const Job& job, const NodeId& server) {
  return job.replicas().leaving.contains(server) || job.replicas().targets.contains(server);
}

void OnReleased(Job& job, const NodeId& server, int64_t placement) {
  const auto leaving = job.replicas().leaving.find(server);
  if (leaving == job.replicas().leaving.end() || placement < leaving->second) return;
  for (ShardDescriptor& shard : job.EditRecord().shards) EraseLeaving(shard, server);
}

bool AdvanceMoves(State& s, Job& job) {
  if (job.progress.version == kNoVersion || job.record.site) return false;
  if (GivesUp(job)) {
    GiveUpMoves(s, job);
    return true;
  }
  AdaptBatch(job);
  if (!job.replicas().joining.empty() && DropMoot(s, job)) return true;
  if (IsBeforeFill(job)) {
    PassRound(s, job, job.rounds, /*opened_by=*/-1, job.record.moves_reason);
    return true;
  }
  if (HasExactSource(s, job)) {
    job.EditRecord().fill_version = 0;
    job.moving.again_at = job.moving.fill_again_at = s.now;
  }
  if (job.replicas().joining.empty()) return PlanMoves(s, job);
  std::vector<ReplicaId> batch = NextBatch(job);
  if (job.moving.batch != batch) {
    job.moving.batch = std::move(batch);
    job.moving.held_since.reset();
    job.moving.again_at = s.now;
  }
  const std::vector<ReplicaId>& now = job.moving.batch;
  const bool received =
      std::ranges::all_of(now, [&](const ReplicaId& id) { return IsReceived(job, id); });
  if (!received || !MaySwitch(job, now)) return false;
  SwitchShards(s, job);
  return true;
}

bool HoldsForMoves(const State& s, const Job& job) {
  if (job.moving.batch.empty() || job.moving.version != job.progress.version) return false;
  // Only what is under way.
  for (const ReplicaId& id : job.moving.batch) {
    const Server* to = s.FindServer(id.server);
    const Server* from = s.FindServer(GetActiveServer(job.shard(id.shard)));
    if (to == nullptr || !to->attached || from == nullptr || !from->attached) return false;
  }
  if (!MaySwitch(job, job.moving.batch)) return false;
  return !job.moving.held_since || s.now - *job.moving.held_since < job.moving.hold;
}

bool TakenOver(const Job& job) {
  const std::map<NodeId, int64_t>& leaving = job.replicas().leaving;
  return std::ranges::all_of(job.rounds.links, [&](const auto& entry) {
    return entry.second.assigned || leaving.contains(entry.first);
  });
}

}  // namespace atl::coord
