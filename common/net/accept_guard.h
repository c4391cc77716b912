// Ends connections of a listening libzmq socket, which accepts all, that are too many, of one
// address or in all, or have begun no session in time.

#ifndef ATOLL_COMMON_NET_ACCEPT_GUARD_H_
#define ATOLL_COMMON_NET_ACCEPT_GUARD_H_

#include <map>
#include <memory>

#include "common/net/endpoint.h"
#include "common/net/open_connections.h"
#include "common/net/socket.h"
#include "common/status.h"
#include "common/time.h"

namespace atl {

// Used by the socket's thread.
class AcceptGuard {
 public:
  static constexpr int kConnectionsMax = 16384;
  static constexpr ConnectionLimits kStrangersMax = {512, 128};  // without a session
  static constexpr Duration kSessionWithin = std::chrono::seconds(10);

  // REQUIRES: before the socket is bound. `needs_sessions`: else only the number counts.
  static absl::StatusOr<std::unique_ptr<AcceptGuard>> Create(ZmqContext& context,
                                                             const Socket& watched,
                                                             bool needs_sessions);

  // Looks at what was accepted since, and ends what must.
  void Run(Instant now);

  // A session has begun on the connection by which the message came.
  void Trust(Message& message, Instant now);

  Socket& socket() { return monitor_.socket(); }  // readable where Run has something to do

 private:
  explicit AcceptGuard(bool needs_sessions);
  void OnAccepted(int descriptor, Instant now);

  const bool needs_sessions_;
  SocketMonitor monitor_;
  OpenConnections open_, strangers_;
  std::map<int, Instant> since_;  // of strangers_
};

}  // namespace atl

#endif  // ATOLL_COMMON_NET_ACCEPT_GUARD_H_
