#include "coordinator/core/shards/move_orders.h"

#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/protocol/outer_optimizer.h"
#include "coordinator/core/adoption.h"
#include "coordinator/core/shards/moves.h"
#include "coordinator/core/shards/refill.h"
#include "coordinator/core/shards/servers.h"

namespace atl::coord {
namespace {

constexpr Duration kFillRetry = std::chrono::seconds(10);
constexpr int kDecisionsReported = 64;

// Describes what makes up `version`, for a server that has nothing of the job.
void DescribeVersion(const Job& job, ReceiveShards& message) {
  message.newest = {job.id(), message.version, {}, {}};
  message.slots = static_cast<int32_t>(ListServerSlots(job.spec()).size());
  int reported = 0;
  for (auto d = job.rounds.decisions.rbegin();
       d != job.rounds.decisions.rend() && reported < kDecisionsReported; ++d, ++reported) {
    for (const DecisionParticipant& p : d->second.participants) {
      message.decided.push_back(p.contribution);
    }
    message.decided.insert(message.decided.end(), d->second.dropped.begin(),
                           d->second.dropped.end());
    if (d->second.version != message.version) continue;
    for (const DecisionParticipant& p : d->second.participants) {
      if (p.accepted) message.newest.terms.push_back(MakeTerm(p));
    }
    message.newest.dropped = d->second.dropped;
    message.newest.image = BuildJobImage(job, d->second);
  }
  std::reverse(message.decided.begin(), message.decided.end());  // oldest first
}

// It holds shards that cannot be used, and no user has said that they are lost: what comes to be
// filled would replace them.
bool IsDamagedHolder(const Job& job, const NodeId& server) {
  const auto link = job.rounds.links.find(server);
  if (link == job.rounds.links.end() || link->second.known) return false;
  const std::vector<ReplicaId>& joining = job.replicas().joining;
  return std::none_of(joining.begin(), joining.end(), [&](const ReplicaId& id) {
    const ShardReplica& replica = GetJoining(job, id);
    return replica.fill && replica.replaces == server;
  });
}

void SendReceive(State& s, Job& job) {
  std::map<NodeId, ReceiveShards> messages;
  for (const ReplicaId& id : job.moving.batch) {
    const Server* to = s.FindServer(id.server);
    if (IsReceived(job, id) || to == nullptr || !to->attached) continue;
    if (IsDamagedHolder(job, id.server)) continue;
    const ShardDescriptor& shard = job.shard(id.shard);
    ShardSource source{ToOwnedShard(shard), "", "", GetJoining(job, id).fill};
    if (!source.fill) {
      const ShardReplica& active = *FindReplica(shard, ReplicaRole::kActive);
      const auto link = job.rounds.links.find(active.server);
      if (link == job.rounds.links.end() || !link->second.known) continue;
      source.endpoint = active.endpoint;
      source.public_key = active.public_key;
    }
    messages[id.server].sources.push_back(std::move(source));
  }
  for (auto& [server, message] : messages) {
    message.job = job.id();
    message.placement = job.record.placement;
    message.version = job.progress.version;
    message.fill_age = job.progress.version - GetFillBase(job);
    DescribeVersion(job, message);
    s.SendToServer(server, std::move(message));
  }
}

// An island that has the parameters, another one each time.
void SendFill(State& s, Job& job) {
  FillShards fill{job.id(), -1, 0, GetFillBase(job), {}};
  for (const ReplicaId& id : job.moving.batch) {
    const Server* to = s.FindServer(id.server);
    const bool waits = GetJoining(job, id).fill && !IsReceived(job, id);
    if (!waits || to == nullptr || !to->attached) continue;
    ShardReplica target;
    SetHolder(*to, target);
    fill.shards.push_back(ToPlacement(job.shard(id.shard), &target));
  }
  if (fill.shards.empty()) return;
  const auto sources = FindFillSources(s, job);
  const auto able = sources.find(fill.version);
  job.moving.trouble =
      able != sources.end()
          ? ""
          : absl::StrCat("no island holds theta_base of version ", fill.version,
                         " any more: repeat atoll refill, which fills from what islands hold now");
  if (able == sources.end()) return;
  const auto& [leader, island] =
      able->second[static_cast<size_t>(job.moving.fills++) % able->second.size()];
  fill.island = island->island;
  fill.generation = island->generation;
  s.Send(*leader, std::move(fill));
  job.moving.fill_again_at = s.now + kFillRetry;
}

// Calls what(server, placement) of those that are attached and have yet to delete all that they
// had of the job.
template <class Do>
void ForEachReleased(const State& s, const Job& job, const Do& what) {
  if (job.record.removed) return;  // PumpServers requests it of all
  for (const auto& [server, since] : job.replicas().leaving) {
    const Server* member = s.FindServer(server);
    if (IsReleasing(job, server) && member != nullptr && member->attached) what(server, since);
  }
}

// Returns a later time for what is due and waits for something else.
Instant Later(const State& s, Instant at) { return at > s.now ? at : s.now + kRetryInterval; }

}  // namespace

void PumpMoves(State& s, Job& job) {
  // Before that theirs is the only copy that is durably assigned.
  if (!job.active() || TakenOver(job)) {
    ForEachReleased(s, job, [&](const NodeId& server, int64_t since) {
      Instant& again_at = job.moving.release_again_at[server];
      if (s.now < again_at) return;
      again_at = s.now + kRetryInterval;
      s.SendToServer(server, RemoveJob{job.id(), since});
    });
  }
  const bool applied = job.decided_version() == job.progress.version;
  if (!job.active() || job.moving.batch.empty() || !applied) return;
  if (s.now >= job.moving.again_at) {
    job.moving.again_at = s.now + kRetryInterval;
    SendReceive(s, job);
  }
  // A moment after the servers have got their orders.
  if (s.now >= job.moving.fill_again_at) SendFill(s, job);
}

Instant NextMoveDeadline(const State& s, const Job& job) {
  Instant next = kNever;
  ForEachReleased(s, job, [&](const NodeId& server, int64_t) {
    const auto again = job.moving.release_again_at.find(server);
    const bool sent_before = again != job.moving.release_again_at.end();
    next = std::min(next, Later(s, sent_before ? again->second : s.now));
  });
  if (!job.active() || job.progress.version == kNoVersion) return next;
  if (job.moving.held_since) {
    next = std::min(next, Later(s, *job.moving.held_since + job.moving.hold));
  }
  if (!job.replicas().joining.empty()) return std::min(next, Later(s, job.moving.again_at));
  // A server that may take shards later, or one that still has to give some.
  for (const auto& [name, server] : s.servers) {
    if (!server.attached) continue;
    const Instant takes = server.attached_at + s.options.rebalance_after;
    if (server.record.draining && job.HoldsShards(name)) {
      next = std::min(next, Later(s, job.moving.plan_again_at));
    }
    if (s.now < takes) next = std::min(next, takes);
  }
  return next;
}

}  // namespace atl::coord
