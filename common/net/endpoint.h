// Parts around a socket: a bound address, and an eye on connections, which libzmq makes and loses
// unseen.

#ifndef ATOLL_COMMON_NET_ENDPOINT_H_
#define ATOLL_COMMON_NET_ENDPOINT_H_

#include <optional>
#include <string>

#include "common/net/socket.h"

namespace atl {

// Binds, at the first free port where it has a range (tcp_endpoint.h). The endpoint with its real
// port, the host as it was given. UNAVAILABLE: no port of it is free, or the host is not ours.
absl::StatusOr<std::string> Bind(Socket& socket, const std::string& endpoint);

enum class ConnectionEvent {
  kConnected,  // TCP is there; the handshake follows
  kUp,
  kRetried,  // no answer
  kLost,     // also after 6 s of silence
  // States of a session; see link_socket.h.
  kUnknownKey,
  kHandshakeFailed,
  kSessionBroken,
};

// Reports what libzmq says of a socket's connections. Used by the socket's thread.
class SocketMonitor {
 public:
  struct Event {
    int what = 0;   // ZMQ_EVENT_...
    int value = 0;  // a descriptor
  };
  // REQUIRES: before the socket binds or connects.
  static absl::StatusOr<SocketMonitor> Create(ZmqContext& context, const Socket& watched,
                                              int events);
  // Returns the next event since the last call, if there is one.
  std::optional<Event> Next();
  Socket& socket() { return monitor_; }

 private:
  Socket monitor_;
};

// Watches the connection of a socket that connects to one endpoint.
absl::StatusOr<SocketMonitor> WatchConnection(ZmqContext& context, const Socket& watched);
// `descriptor` is the connection's with kConnected, and else -1.
std::optional<ConnectionEvent> NextConnectionEvent(SocketMonitor& watch, int* descriptor);

// Human-readable text of an event that ends a connection.
absl::string_view Explain(ConnectionEvent event);

}  // namespace atl

#endif  // ATOLL_COMMON_NET_ENDPOINT_H_
