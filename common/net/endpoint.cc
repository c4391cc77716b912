#include "common/net/endpoint.h"

#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <vector>

#include "common/net/tcp_endpoint.h"

namespace atl {

namespace {

absl::Status BindInRange(Socket& socket, const std::string& endpoint, PortRange ports) {
  const std::string host = endpoint.substr(0, endpoint.rfind(':') + 1);
  for (int port = ports.first; port <= ports.last; ++port) {
    if (zmq_bind(socket.get(), absl::StrCat(host, port).c_str()) == 0) return absl::OkStatus();
    if (zmq_errno() != EADDRINUSE) return ZmqError(endpoint);
  }
  return absl::UnavailableError(
      absl::StrCat(endpoint, ": all of these ports are in use; give a wider range"));
}

}  // namespace

absl::StatusOr<std::string> Bind(Socket& socket, const std::string& endpoint) {
  if (const std::optional<PortRange> ports = ReadPortRange(endpoint)) {
    ATOLL_RETURN_IF_ERROR(BindInRange(socket, endpoint, *ports));
  } else if (zmq_bind(socket.get(), endpoint.c_str()) != 0) {
    return ZmqError(endpoint);
  }
  std::array<char, 256> bound;
  size_t size = bound.size();
  if (zmq_getsockopt(socket.get(), ZMQ_LAST_ENDPOINT, bound.data(), &size) != 0) {
    return ZmqError(endpoint);
  }
  // libzmq writes IPv4 as mapped IPv6.
  return endpoint.substr(0, endpoint.rfind(':')) + std::strrchr(bound.data(), ':');
}

absl::StatusOr<SocketMonitor> SocketMonitor::Create(ZmqContext& context, const Socket& watched,
                                                    int events) {
  static std::atomic<uint64_t> count = 0;
  const std::string name = absl::StrCat("inproc://monitor-", ++count);
  if (zmq_socket_monitor(watched.get(), name.c_str(), events) != 0) {
    return ZmqError("zmq_socket_monitor");
  }
  SocketMonitor monitor;
  ATOLL_ASSIGN_OR_RETURN(monitor.monitor_, context.MakeInprocSocket());
  if (zmq_connect(monitor.monitor_.get(), name.c_str()) != 0) return ZmqError(name);
  return monitor;
}

std::optional<SocketMonitor::Event> SocketMonitor::Next() {
  std::vector<Message> parts;
  while (monitor_.Receive(&parts, 2)) {
    uint16_t what = 0;
    uint32_t value = 0;
    const std::span<const std::byte> bytes = parts[0].bytes();
    if (bytes.size() < sizeof what + sizeof value) continue;
    std::memcpy(&what, bytes.data(), sizeof what);
    std::memcpy(&value, bytes.data() + sizeof what, sizeof value);
    return Event{what, static_cast<int>(value)};
  }
  return std::nullopt;
}

absl::StatusOr<SocketMonitor> WatchConnection(ZmqContext& context, const Socket& watched) {
  return SocketMonitor::Create(context, watched,
                               ZMQ_EVENT_CONNECTED | ZMQ_EVENT_HANDSHAKE_SUCCEEDED |
                                   ZMQ_EVENT_DISCONNECTED | ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL |
                                   ZMQ_EVENT_HANDSHAKE_FAILED_NO_DETAIL |
                                   ZMQ_EVENT_CONNECT_RETRIED);
}

std::optional<ConnectionEvent> NextConnectionEvent(SocketMonitor& watch, int* descriptor) {
  const std::optional<SocketMonitor::Event> event = watch.Next();
  if (!event) return std::nullopt;
  const bool connected = event->what == ZMQ_EVENT_CONNECTED;
  if (descriptor != nullptr) *descriptor = connected ? event->value : -1;
  if (connected) return ConnectionEvent::kConnected;
  if (event->what == ZMQ_EVENT_HANDSHAKE_SUCCEEDED) return ConnectionEvent::kUp;
  if (event->what == ZMQ_EVENT_DISCONNECTED) return ConnectionEvent::kLost;
  if (event->what == ZMQ_EVENT_CONNECT_RETRIED) return ConnectionEvent::kRetried;
  return ConnectionEvent::kHandshakeFailed;
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
