#include "coordinator/core/names.h"

#include <algorithm>
#include <set>
#include <utility>
#include <vector>

namespace atl::coord {
namespace {

constexpr int64_t kPartForgotten = 16;  // one of so many

class References {
 public:
  explicit References(const State& s) {
    for (const auto& [number, job] : s.jobs) AddServers(job);
    for (const auto& [number, job] : s.jobs) {
      if (!job.record.removed) AddWorkers(job);
    }
    for (const auto& [job, servers] : s.held) {
      for (const auto& [server, what] : servers) Add(MemberKind::kServer, server);
    }
  }

  bool Contains(const MemberId& key) const { return names_.contains(key); }

 private:
  void Add(MemberKind kind, const NodeId& name) { names_.insert({kind, name}); }

  void AddServers(const Job& job) {
    ForEachReplica(job.record.shards, [&](const ShardDescriptor&, const ShardReplica& replica) {
      Add(MemberKind::kServer, replica.server);
    });
    for (const auto& [server, link] : job.rounds.links) Add(MemberKind::kServer, server);
  }

  void AddWorkers(const Job& job) {
    for (const auto& [id, island] : job.islands) {
      if (island.incarnation == 0 && !job.active()) continue;
      Add(MemberKind::kWorker, island.worker);
      Add(MemberKind::kWorker, island.takes_over_from);
      for (const IslandMember& follower : island.followers) {
        Add(MemberKind::kWorker, follower.worker);
      }
      for (const SavedState& state : island.saved) {
        for (const auto& holder : state.holders) Add(MemberKind::kWorker, holder.worker);
      }
    }
    for (const auto& [id, plan] : job.plans) {
      for (const IslandMember& member : plan.members) Add(MemberKind::kWorker, member.worker);
    }
  }

  std::set<MemberId> names_;
};

bool MayBeForgotten(const State& s, const Member& member) {
  const bool kept = member.record.draining && member.record.kind == MemberKind::kServer;
  return !member.attached && !member.reattach_by && !kept &&
         s.now >= member.detached_at + kNameHeld;
}

}  // namespace

bool MakeRoomForName(State& s) {
  if (s.CountMembers() < s.options.max_members) return true;
  const References references(s);
  std::vector<std::pair<Instant, MemberId>> old;
  s.ForEachMember([&](const Member& member) {
    if (MayBeForgotten(s, member) && !references.Contains(member.id())) {
      old.emplace_back(member.detached_at, member.id());
    }
  });
  const auto count = std::min<std::ptrdiff_t>(
      std::ssize(old), std::max<int64_t>(1, s.options.max_members / kPartForgotten));
  std::partial_sort(old.begin(), old.begin() + count, old.end());
  old.resize(static_cast<size_t>(count));
  for (const auto& [detached_at, id] : old) {
    s.out.persist.push_back({s.FindMember(id)->record, true});
    s.dirty_members.erase(id);
    if (id.kind == MemberKind::kServer) {
      s.servers.erase(id.name);
      continue;
    }
    Worker& worker = *s.FindWorker(id.name);
    s.SetCandidate(worker, "");
    s.SetFollowing(worker, std::nullopt);
    s.drained_workers.erase(id.name);
    s.workers.erase(id.name);
  }
  return !old.empty();
}

}  // namespace atl::coord
