// Addresses of tensor and peer links, as flags and messages have them.

#ifndef ATOLL_COMMON_NET_TCP_ENDPOINT_H_
#define ATOLL_COMMON_NET_TCP_ENDPOINT_H_

#include <optional>

#include "common/status.h"

namespace atl {

// OK if it is tcp://HOST:PORT; the host may be "*" or an IPv6 address in brackets, the port "*".
absl::Status CheckTcpEndpoint(absl::string_view endpoint);

// The same of one to listen at, whose port may also be a range, "7200-7209".
absl::Status CheckListenEndpoint(absl::string_view endpoint);

// 1 <= first <= last <= 65535.
struct PortRange {
  int first = 0, last = 0;
};
// Reads the range of such an endpoint. Nothing: its port is another one, or the range is none.
std::optional<PortRange> ReadPortRange(absl::string_view endpoint);

// Returns whether a host, "[...]" around IPv6, is this machine: localhost, 127.0.0.0/8 or ::1.
bool IsLoopbackHost(absl::string_view host);

}  // namespace atl

#endif  // ATOLL_COMMON_NET_TCP_ENDPOINT_H_
