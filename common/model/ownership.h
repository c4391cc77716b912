// Which replicas of an island keep the optimizer's state of which elements of a layer (ZeRO stage
// 1, Rajbhandari et al. 2020, section 5.1). A replica owns the same share of every layer that it
// holds, of its tensor-parallel part where layers are cut. Pure: all members that know the plan
// agree.
//
// Replicas are divided into shards, runs of neighbours, and all replicas of a shard own the same
// elements: they step them alike, with the same bits. A plan's optimizer_copies is the least number
// of replicas in a shard, so a death costs no state while another one of them runs. With one shard
// every replica owns all.

#ifndef ATOLL_COMMON_MODEL_OWNERSHIP_H_
#define ATOLL_COMMON_MODEL_OWNERSHIP_H_

#include <cstdint>
#include <span>

#include "common/model/tensor_part.h"
#include "common/protocol/island_plan.h"

namespace atl {

struct Ownership {
  int replicas = 1;
  int shards = 1;  // at most as many as replicas

  bool sharded() const { return shards > 1; }
  int GetShardIndex(int replica) const { return replica * shards / replicas; }
  // The replica that represents a shard: the first one in it.
  bool Leads(int replica) const {
    return replica == 0 || GetShardIndex(replica - 1) != GetShardIndex(replica);
  }

  // Returns the range that a replica owns of a layer with so many elements. No replica owns a part
  // of an `undivided` range (optimizer_state.h): a cut within one moves to its nearer end.
  Range Owned(int replica, int64_t elements, std::span<const Range> undivided = {}) const;
  // Returns the range that a replica adds up for its shard: the replicas of a shard cut what they
  // own among them. In the order of replicas these parts are the whole layer.
  Range Summed(int replica, int64_t elements, std::span<const Range> undivided = {}) const;

  bool operator==(const Ownership&) const = default;
};

Ownership OwnershipFromPlan(const IslandPlan& plan);

}  // namespace atl

#endif  // ATOLL_COMMON_MODEL_OWNERSHIP_H_
