#include "common/net/endpoint.h"

#include <array>
#include <atomic>
#include <cstring>
#include <vector>

namespace atl {

absl::StatusOr<std::string> Bind(Socket& socket, const std::string& endpoint) {
  if (zmq_bind(socket.get(), endpoint.c_str()) != 0) return ZmqError(endpoint);
  std::array<char, 256> bound;
  size_t size = bound.size();
  if (zmq_getsockopt(socket.get(), ZMQ_LAST_ENDPOINT, bound.data(), &size) != 0) {
    return ZmqError(endpoint);
  }
  // libzmq writes IPv4 as mapped IPv6.
  return endpoint.substr(0, endpoint.rfind(':')) + std::strrchr(bound.data(), ':');
}

absl::StatusOr<ConnectionWatch> ConnectionWatch::Create(ZmqContext& context,
                                                        const Socket& watched) {
  static std::atomic<uint64_t> count = 0;
  const std::string name = absl::StrCat("inproc://watch-", ++count);
  constexpr int kEvents = ZMQ_EVENT_CONNECTED | ZMQ_EVENT_HANDSHAKE_SUCCEEDED |
                          ZMQ_EVENT_DISCONNECTED | ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL |
                          ZMQ_EVENT_HANDSHAKE_FAILED_NO_DETAIL | ZMQ_EVENT_CONNECT_RETRIED;
  if (zmq_socket_monitor(watched.get(), name.c_str(), kEvents) != 0) {
    return ZmqError("zmq_socket_monitor");
  }
  ConnectionWatch watch;
  ATOLL_ASSIGN_OR_RETURN(watch.monitor_, context.MakeInprocSocket(ZMQ_PAIR));
  if (zmq_connect(watch.monitor_.get(), name.c_str()) != 0) return ZmqError(name);
  return watch;
}

std::optional<ConnectionEvent> ConnectionWatch::Next(int* descriptor) {
  std::vector<Message> parts;
  while (monitor_.Receive(&parts, 2)) {
    uint16_t event = 0;
    uint32_t value = 0;
    const std::span<const std::byte> bytes = parts[0].bytes();
    if (bytes.size() < sizeof event + sizeof value) continue;
    std::memcpy(&event, bytes.data(), sizeof event);
    std::memcpy(&value, bytes.data() + sizeof event, sizeof value);
    if (descriptor != nullptr) *descriptor = -1;
    switch (event) {
      case ZMQ_EVENT_CONNECTED:
        if (descriptor != nullptr) *descriptor = static_cast<int>(value);
        return ConnectionEvent::kConnected;
      case ZMQ_EVENT_HANDSHAKE_SUCCEEDED:
        return ConnectionEvent::kUp;
      case ZMQ_EVENT_DISCONNECTED:
        return ConnectionEvent::kLost;
      case ZMQ_EVENT_CONNECT_RETRIED:
        return ConnectionEvent::kRetried;
      case ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL:
      case ZMQ_EVENT_HANDSHAKE_FAILED_NO_DETAIL:
        return ConnectionEvent::kHandshakeFailed;
      default:
        break;
    }
  }
  return std::nullopt;
}

absl::string_view Explain(ConnectionEvent event) {
  switch (event) {
    case ConnectionEvent::kConnected:
    case ConnectionEvent::kUp:
      return "connected";
    case ConnectionEvent::kRetried:
      return "no answer from there";
    case ConnectionEvent::kLost:
      return "the connection was lost";
    case ConnectionEvent::kUnknownKey:
      return "the other end does not know our key";
    case ConnectionEvent::kHandshakeFailed:
      return "the handshake failed: check that both ends use keys, and that the other's is the "
             "right one";
    case ConnectionEvent::kSessionBroken:
      return "what came does not open: it was changed on its way, or is another connection's";
  }
  return "";
}

}  // namespace atl
