// Load balancing over the edges between two workers: how busy each is, and which of them takes a
// message's next chunk.

#ifndef ATOLL_COMMON_NET_PEER_EDGE_LOAD_H_
#define ATOLL_COMMON_NET_PEER_EDGE_LOAD_H_

#include <cstdint>
#include <span>

namespace atl {

struct EdgeLoad {
  double backlog_bytes = 0;  // given to it, and not acknowledged by the other end
  double bytes_per_s = 0;    // at which they are acknowledged; 0: not known yet
  double latency_s = 0;      // half of the quickest round trip
};

// Reads the kernel's state of a TCP connection's socket; `queued_bytes` wait before it. A
// descriptor that is none gives an unknown load.
EdgeLoad ReadEdgeLoad(int descriptor, int64_t queued_bytes);

// Returns whether an edge takes the next chunk of what is to be sent, of which `left_bytes` are
// left: unless one of the others would bring all that is left before this one would bring the
// chunk. At least one edge takes it.
bool TakesChunk(const EdgeLoad& edge, std::span<const EdgeLoad> others, int64_t chunk_bytes,
                int64_t left_bytes);

}  // namespace atl

#endif  // ATOLL_COMMON_NET_PEER_EDGE_LOAD_H_
