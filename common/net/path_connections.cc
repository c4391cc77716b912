#include "common/net/path_connections.h"

#include <algorithm>
#include <cmath>
#include <fstream>

namespace atl {
namespace {

// Enough of them that what arrives in lumps of a segment counts evenly.
constexpr int kRoundTripsMeasured = 8;
constexpr Duration kMeasuredLeast = std::chrono::milliseconds(500);
constexpr double kSpare = 1.3;

// The third number of the file, the most that the kernel lets a buffer grow to.
int64_t BufferBytesMax(const char* path) {
  std::ifstream in(path);
  int64_t least = 0, default_bytes = 0, most = 0;
  constexpr int64_t kDefaultMost = int64_t{4} << 20;
  return in >> least >> default_bytes >> most && most > 0 ? most : kDefaultMost;
}

}  // namespace

void PathConnections::RoundTrip(Duration time) {
  if (!round_trip_ || time < *round_trip_) round_trip_ = time;
}

void PathConnections::Moved(int64_t bytes, Instant now) {
  if (!begin_) {
    begin_ = now;
    bytes_ = 0;
    return;  // it came before
  }
  bytes_ += bytes;
  const Duration time = now - *begin_;
  if (!round_trip_ || time < std::max(kRoundTripsMeasured * *round_trip_, kMeasuredLeast)) return;
  const double under_way = static_cast<double>(bytes_) / Seconds(time) * Seconds(*round_trip_);
  const double wanted = std::ceil(kSpare * under_way / static_cast<double>(window_bytes_));
  wanted_ = std::clamp(static_cast<int>(std::min(wanted, 1e6)), wanted_, connections_max_);
  begin_ = now;
  bytes_ = 0;
}

// Two thirds of a buffer: the rest is what the kernel counts besides the payload.
int64_t ConnectionWindowBytes() {
  return std::min(BufferBytesMax("/proc/sys/net/ipv4/tcp_wmem"),
                  BufferBytesMax("/proc/sys/net/ipv4/tcp_rmem")) *
         2 / 3;
}

}  // namespace atl
