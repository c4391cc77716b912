// Checks whether a TCP address is in use, without a protocol.

#ifndef ATOLL_COMMON_NET_TCP_PROBE_H_
#define ATOLL_COMMON_NET_TCP_PROBE_H_

#include <string>

#include "absl/status/status.h"

namespace atl {

// Returns whether a process accepts connections at "host:port". An address of this machine is
// answered at once.
bool IsListening(const std::string& address);

// Checks that this process may listen at "host:port" now; port 0: always. The error names the
// address and what the system says.
absl::Status CheckCanListen(const std::string& address);

}  // namespace atl

#endif  // ATOLL_COMMON_NET_TCP_PROBE_H_
