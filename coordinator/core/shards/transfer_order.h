// In which order each of several senders moves its transfers, so that servers are evenly busy: with
// equal loads a Latin square (in slot s sender w talks to server (w + s) mod n), with unequal ones
// greedy list scheduling of the open shop. Pure.

#ifndef ATOLL_COORDINATOR_CORE_SHARDS_TRANSFER_ORDER_H_
#define ATOLL_COORDINATOR_CORE_SHARDS_TRANSFER_ORDER_H_

#include <cstdint>
#include <vector>

#include "common/ids.h"

namespace atl {

struct Transfer {
  ShardId shard = 0;
  int32_t server = 0;  // index, below `servers`
  int64_t bytes = 0;
};

struct ScheduledTransfer {
  int32_t sender = 0;
  size_t transfer = 0;  // index among the sender's
};

// All senders' transfers in the order in which they begin. Carried out at equal speeds, no server
// ever has two senders, and no sender waits while a server that it still needs is idle.
std::vector<ScheduledTransfer> ScheduleTransfers(
    const std::vector<std::vector<Transfer>>& by_sender, int32_t servers);

// Returns where all senders move all shards: orders[w] holds every shard once.
std::vector<std::vector<ShardId>> PlanTransfers(const std::vector<Transfer>& shards,
                                                int32_t servers, int32_t senders);

}  // namespace atl

#endif  // ATOLL_COORDINATOR_CORE_SHARDS_TRANSFER_ORDER_H_
