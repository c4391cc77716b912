// Records what parameter servers have staged of a contribution, by shard, or by slot (copies.h).

#ifndef ATOLL_COORDINATOR_CORE_ROUNDS_STAGED_H_
#define ATOLL_COORDINATOR_CORE_ROUNDS_STAGED_H_

#include <map>
#include <set>
#include <utility>
#include <vector>

#include "common/element_ranges.h"
#include "common/ids.h"

namespace atl::coord {

class StagedShards {
 public:
  // Adds a push to a shard with so many elements.
  void Add(const PushId& push, int64_t shard_elements) {
    Add(push.shard, push.RangeIn(shard_elements), shard_elements);
  }
  void Add(ShardId slot, ElementRange range, int64_t shard_elements) {
    if (whole_.contains(slot)) return;
    ElementRanges& ranges = parts_[slot];
    ranges.Add(range);
    if (!ranges.Covers({0, shard_elements})) return;
    whole_.insert(slot);
    parts_.erase(slot);
  }
  // Moves what is staged in slot `from` to slot `to`.
  void Rename(ShardId from, ShardId to) {
    Forget(to);
    if (whole_.erase(from) > 0) whole_.insert(to);
    if (auto parts = parts_.extract(from)) {
      parts.key() = to;
      parts_.insert(std::move(parts));
    }
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

}  // namespace atl::coord

#endif  // ATOLL_COORDINATOR_CORE_ROUNDS_STAGED_H_
