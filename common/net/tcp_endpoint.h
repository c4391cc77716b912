// Addresses of tensor and peer links, as flags and messages have them.

#ifndef ATOLL_COMMON_NET_TCP_ENDPOINT_H_
#define ATOLL_COMMON_NET_TCP_ENDPOINT_H_

#include "common/status.h"

namespace atl {

// OK if it is tcp://HOST:PORT; the host may be "*" or an IPv6 address in brackets, the port "*".
absl::Status CheckTcpEndpoint(absl::string_view endpoint);

// Returns whether a host, "[...]" around IPv6, is this machine: localhost, 127.0.0.0/8 or ::1.
bool IsLoopbackHost(absl::string_view host);

}  // namespace atl

#endif  // ATOLL_COMMON_NET_TCP_ENDPOINT_H_
