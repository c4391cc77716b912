// Records what parameter servers have staged of a contribution.

#ifndef ATOLL_COORDINATOR_CORE_ROUNDS_STAGED_H_
#define ATOLL_COORDINATOR_CORE_ROUNDS_STAGED_H_

#include <map>
#include <vector>

#include "common/element_ranges.h"
#include "common/ids.h"

namespace atl::coord {

// By one server.
class StagedShards {
 public:
  // Adds a push to a shard with so many elements.
  void Add(const PushId& push, int64_t shard_elements) {
    if (Holds(push.shard)) return;
    const ElementRange all{0, shard_elements}, range = push.RangeIn(shard_elements);
    if (range != all) {
      ElementRanges& ranges = parts_[push.shard];
      ranges.Add(range);
      if (!ranges.Covers(all)) return;
      parts_.erase(push.shard);
    }
    const auto index = static_cast<size_t>(push.shard);
    if (index >= whole_.size()) whole_.resize(index + 1);
    whole_[index] = true;
    ++size_;
  }
  void Forget(ShardId shard) {
    parts_.erase(shard);
    if (!Holds(shard)) return;
    whole_[static_cast<size_t>(shard)] = false;
    --size_;
  }

  bool Holds(ShardId shard) const {
    const auto index = static_cast<size_t>(shard);
    return index < whole_.size() && whole_[index];
  }
  // Shards staged whole.
  size_t size() const { return size_; }
  std::vector<ElementRange> Missing(ShardId shard, ElementRange range) const {
    if (Holds(shard)) return {};
    const auto found = parts_.find(shard);
    return found == parts_.end() ? std::vector<ElementRange>{range} : found->second.Missing(range);
  }

  template <class V>
  void VisitFields(V& v) {
    std::map<ShardId, std::vector<ElementRange>> parts;
    for (const auto& [shard, ranges] : parts_) parts[shard] = ranges.ranges();
    v(whole_, size_, parts);
    if (parts_.size() == parts.size()) return;
    for (const auto& [shard, ranges] : parts) {  // they were read
      for (const ElementRange& range : ranges) parts_[shard].Add(range);
    }
  }

 private:
  std::vector<bool> whole_;  // by shard: a contribution has tens of thousands
  size_t size_ = 0;
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
