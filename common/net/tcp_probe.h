// Sockets of TCP addresses, and whether one is in use, without a protocol.

#ifndef ATOLL_COMMON_NET_TCP_PROBE_H_
#define ATOLL_COMMON_NET_TCP_PROBE_H_

#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"

struct addrinfo;  // of <netdb.h>, whose macros are names of messages

namespace atl {

// Calls `use` with a socket, of these flags, for each socket address of "host:port" until it
// returns true, and returns whether it did. `error`: why none could be made. False without a call:
// there is no such host, or no descriptor.
bool WithSocket(const std::string& address, int flags, const char** error,
                absl::FunctionRef<bool(int fd, const addrinfo& at)> use);

// Returns whether a process accepts connections at "host:port". An address of this machine is
// answered at once.
bool IsListening(const std::string& address);

// Checks that this process may listen at "host:port" now; port 0: always. The error names the
// address and what the system says.
absl::Status CheckCanListen(const std::string& address);

}  // namespace atl

#endif  // ATOLL_COMMON_NET_TCP_PROBE_H_
