// Records what parameter servers have staged of a contribution.

#ifndef ATOLL_COORDINATOR_CORE_ROUNDS_STAGED_H_
#define ATOLL_COORDINATOR_CORE_ROUNDS_STAGED_H_

#include <map>
#include <set>
#include <vector>

#include "common/element_ranges.h"
#include "common/ids.h"

namespace atl::coord {

// By one server.
class StagedShards {
 public:
  // Adds a push to a shard with so many elements.
  void Add(const PushId& push, int64_t shard_elements) {
    if (whole_.contains(push.shard)) return;
    ElementRanges& ranges = parts_[push.shard];
    ranges.Add(push.RangeIn(shard_elements));
    if (!ranges.Covers({0, shard_elements})) return;
    whole_.insert(push.shard);
    parts_.erase(push.shard);
  }
  void Forget(ShardId shard) {
    whole_.erase(shard);
    parts_.erase(shard);
  }

  bool Holds(ShardId shard) const { return whole_.contains(shard); }
  // Shards staged whole.
  size_t size() const { return whole_.size(); }
  std::vector<ElementRange> Missing(ShardId shard, ElementRange range) const {
    if (Holds(shard)) return {};
    const auto found = parts_.find(shard);
    return found == parts_.end() ? std::vector<ElementRange>{range} : found->second.Missing(range);
  }

 private:
  std::set<ShardId> whole_;
  std::map<ShardId, ElementRanges> parts_;  // of shards that are not whole
};

using StagedByServer = std::map<NodeId, StagedShards>;

// Replicas that have their shard staged whole.
inline int64_t CountStaged(const StagedByServer& staged) {
  int64_t count = 0;
  for (const auto& [server, shards] : staged) count += static_cast<int64_t>(shards.size());
  return count;
}

}  // namespace atl::coord

#endif  // ATOLL_COORDINATOR_CORE_ROUNDS_STAGED_H_
