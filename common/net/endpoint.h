// What sockets need around them, at both ends: a bound address, the door that CURVE keys open, and
// an eye on connections, which libzmq makes and loses unseen.

#ifndef ATOLL_COMMON_NET_ENDPOINT_H_
#define ATOLL_COMMON_NET_ENDPOINT_H_

#include <optional>
#include <set>
#include <string>
#include <vector>

#include "common/net/socket.h"

namespace atl {

// Binds. The endpoint with its real port, the host as it was given.
absl::StatusOr<std::string> Bind(Socket& socket, const std::string& endpoint);

// Lets those CURVE keys in that are on its list: a ZAP handler (ZeroMQ RFC 27), one per context.
// Used by one thread at a time.
class Doorkeeper {
 public:
  // REQUIRES, for safety: before any CURVE server of the context is bound.
  static absl::StatusOr<Doorkeeper> Open(ZmqContext& context);

  // Z85 keys, checked before; replaces the list.
  void Admit(const std::vector<std::string>& public_keys);
  // Answers connection requests. Returns how many were refused.
  int Answer();
  void* socket() const { return zap_.get(); }

 private:
  Socket zap_;
  std::set<std::string> admitted_;  // raw, 32 bytes each
};

// The Z85 key with which the sender of a received message was let in; empty without CURVE.
std::string SenderKey(Message& message);

enum class ConnectionEvent {
  kConnected,  // TCP is there; the handshake follows
  kUp,
  kRetried,  // no answer
  kLost,     // also after 6 s of silence
  kUnknownKey,
  kHandshakeFailed,
};

// Watches the connection of a socket that connects to one endpoint. Used by the socket's thread.
class ConnectionWatch {
 public:
  ConnectionWatch() = default;
  // REQUIRES: before the socket connects.
  static absl::StatusOr<ConnectionWatch> Create(ZmqContext& context, const Socket& watched);

  // What has happened since, one at a time. `descriptor` is the connection's with kConnected, and
  // else -1.
  std::optional<ConnectionEvent> Next(int* descriptor = nullptr);
  void* socket() const { return monitor_.get(); }

 private:
  Socket monitor_;
};

// Human-readable text of an event that ends a connection.
absl::string_view Explain(ConnectionEvent event);

}  // namespace atl

#endif  // ATOLL_COMMON_NET_ENDPOINT_H_
