// How many connections one end of a link uses to the other: as many as it takes for their
// windows to hold what is in flight at the rate that was measured. Pure; not thread-safe.
//
// A connection has at most a window of bytes in flight, whatever the link can carry: 4 MiB of
// socket buffer, of which about two thirds are payload, are 223 Mbit/s at 100 ms
// (docs/design/links.md). So the number is
//
//   ceil(1.3 * rate * round trip / window)
//
// and only grows: while connections are what limits, the rate grows with each of them; when the
// link does, the number stays, with a third of the windows unused.

#ifndef ATOLL_COMMON_NET_PATH_CONNECTIONS_H_
#define ATOLL_COMMON_NET_PATH_CONNECTIONS_H_

#include <cstdint>
#include <optional>

#include "common/time.h"

namespace atl {

class PathConnections {
 public:
  PathConnections(int64_t window_bytes, int connections_max)
      : window_bytes_(window_bytes), connections_max_(connections_max) {}

  // Notes the time from a request to its answer; the shortest counts.
  void RoundTrip(Duration time);
  // Has certainly arrived at the other end, or here.
  void Moved(int64_t bytes, Instant now);
  // Nothing is in flight: what follows is measured anew.
  void Idle() { begin_.reset(); }

  int wanted() const { return wanted_; }

 private:
  const int64_t window_bytes_;
  const int connections_max_;
  std::optional<Duration> round_trip_;
  std::optional<Instant> begin_;  // of what is being measured
  int64_t bytes_ = 0;             // since then
  int wanted_ = 1;
};

// Payload that one TCP connection of this machine can have in flight, by the kernel's limits of
// its buffers. The other end's are taken to be the same.
int64_t ConnectionWindowBytes();

}  // namespace atl

#endif  // ATOLL_COMMON_NET_PATH_CONNECTIONS_H_
