// In which order each of several senders moves the shards, all senders moving all shards, so that
// servers are evenly busy: with equal loads a Latin square (in slot s sender w talks to server
// (w + s) mod n), with unequal ones greedy list scheduling of the open shop. Pure.

#ifndef ATOLL_COORDINATOR_CORE_TRANSFER_ORDER_H_
#define ATOLL_COORDINATOR_CORE_TRANSFER_ORDER_H_

#include <cstdint>
#include <vector>

#include "common/ids.h"

namespace atl {

struct Transfer {
  ShardId shard = 0;
  int32_t server = 0;  // index, below `servers`
  int64_t bytes = 0;
};

// orders[w] holds every shard once. Carried out at equal speeds, no server ever has two senders,
// and no sender waits while a server that it still needs is idle.
std::vector<std::vector<ShardId>> PlanTransfers(const std::vector<Transfer>& shards,
                                                int32_t servers, int32_t senders);

}  // namespace atl

#endif  // ATOLL_COORDINATOR_CORE_TRANSFER_ORDER_H_
