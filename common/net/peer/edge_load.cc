#include "common/net/peer/edge_load.h"

#include <linux/sockios.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <algorithm>

namespace atl {
namespace {

double SecondsFor(const EdgeLoad& edge, int64_t more_bytes) {
  return edge.latency_s + (edge.backlog_bytes + static_cast<double>(more_bytes)) / edge.bytes_per_s;
}

}  // namespace

EdgeLoad ReadEdgeLoad(int descriptor, int64_t queued_bytes) {
  EdgeLoad load{.backlog_bytes = static_cast<double>(queued_bytes)};
  tcp_info info = {};
  socklen_t size = sizeof info;
  int unacknowledged = 0;
  if (getsockopt(descriptor, IPPROTO_TCP, TCP_INFO, &info, &size) != 0 ||
      ioctl(descriptor, SIOCOUTQ, &unacknowledged) != 0) {
    return load;
  }
  load.backlog_bytes += unacknowledged;
  load.bytes_per_s = static_cast<double>(info.tcpi_delivery_rate);
  load.latency_s = static_cast<double>(info.tcpi_min_rtt) * 1e-6 / 2;
  return load;
}

bool TakesChunk(const EdgeLoad& edge, std::span<const EdgeLoad> others, int64_t chunk_bytes,
                int64_t left_bytes) {
  if (edge.bytes_per_s <= 0) return true;
  const double own_s = SecondsFor(edge, chunk_bytes);
  return std::none_of(others.begin(), others.end(), [&](const EdgeLoad& other) {
    return other.bytes_per_s > 0 && SecondsFor(other, left_bytes) < own_s;
  });
}

}  // namespace atl
