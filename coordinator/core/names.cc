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

  bool Contains(const MemberKey& key) const { return names_.contains(key); }

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

  std::set<MemberKey> names_;
};

bool MayBeForgotten(const State& s, const Member& member) {
  const bool kept = member.record.draining && member.record.kind == MemberKind::kServer;
  return !member.attached && !member.reattach_by && !kept &&
         s.now >= member.detached_at + kNameHeld;
}

}  // namespace

bool MakeRoomForName(State& s) {
  if (static_cast<int64_t>(s.members.size()) < s.options.max_members) return true;
  const References references(s);
  std::vector<std::pair<Instant, MemberKey>> old;
  for (const auto& [key, member] : s.members) {
    if (MayBeForgotten(s, member) && !references.Contains(key)) {
      old.emplace_back(member.detached_at, key);
    }
  }
  const auto count = std::min<std::ptrdiff_t>(
      std::ssize(old), std::max<int64_t>(1, s.options.max_members / kPartForgotten));
  std::partial_sort(old.begin(), old.begin() + count, old.end());
  old.resize(static_cast<size_t>(count));
  for (const auto& [detached_at, key] : old) {
    const auto member = s.members.find(key);
    s.out.persist.push_back({member->second.record, true});
    s.SetCandidate(member->second, "");
    s.SetFollowing(member->second, std::nullopt);
    s.dirty_members.erase(key);
    if (key.first == MemberKind::kWorker) s.drained_workers.erase(key.second);
    s.members.erase(member);
  }
  return !old.empty();
}

}  // namespace atl::coord
