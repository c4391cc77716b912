// Fencing token of messages between workers: the job, generation and plan of their sender.

#ifndef ATOLL_COMMON_NET_PEER_PEER_FENCE_H_
#define ATOLL_COMMON_NET_PEER_PEER_FENCE_H_

#include <compare>
#include <cstdint>

#include "common/ids.h"

namespace atl {

struct PeerFence {
  JobId job;
  Generation generation = 0;
  int64_t plan = 0;

  auto operator<=>(const PeerFence&) const = default;
};

}  // namespace atl

#endif  // ATOLL_COMMON_NET_PEER_PEER_FENCE_H_
