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

// A transfer of so many bytes may take so long: slower links than 100 kB/s are of no use.
inline Duration TransferTimeout(int64_t bytes) {
  return std::chrono::seconds(60) + FromSeconds(static_cast<double>(bytes) / 100e3);
}

}  // namespace atl::worker

#endif  // ATOLL_WORKER_OUTER_TRANSFER_LIMITS_H_
