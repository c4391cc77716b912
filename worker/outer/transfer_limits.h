// How much one end of a tensor link moves at a time, and how long it waits for that.

#ifndef ATOLL_WORKER_OUTER_TRANSFER_LIMITS_H_
#define ATOLL_WORKER_OUTER_TRANSFER_LIMITS_H_

#include <chrono>
#include <cstdint>

#include "common/time.h"

namespace atl::worker {

// Enough to keep the link busy from one shard to the next, few enough for the order to mean
// something, and for none to wait long for its turn.
inline constexpr int kShardsAtOnce = 4;

// Returns whether one more shard is moved beside so many, which have so many elements together:
// small ones, whose messages take longer than their bytes, all at once.
inline bool MayMoveOneMore(size_t shards, int64_t elements) {
  constexpr size_t kSmallShardsAtOnce = 64;
  constexpr int64_t kFewElements = int64_t{1} << 20;
  return shards < kShardsAtOnce || (shards < kSmallShardsAtOnce && elements < kFewElements);
}

// A transfer of so many bytes may take so long: slower links than 100 kB/s are of no use.
inline Duration TransferTimeout(int64_t bytes) {
  return std::chrono::seconds(60) + FromSeconds(static_cast<double>(bytes) / 100e3);
}

}  // namespace atl::worker

#endif  // ATOLL_WORKER_OUTER_TRANSFER_LIMITS_H_
