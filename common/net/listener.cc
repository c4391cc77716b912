#include "common/net/listener.h"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "common/logging.h"

namespace atl {
namespace {

constexpr int kBacklog = 512;
constexpr int kRetryMs = 100;  // after accept() failed

void SetPort(sockaddr* address, int port) {
  const auto number = htons(static_cast<uint16_t>(port));
  if (address->sa_family == AF_INET) reinterpret_cast<sockaddr_in*>(address)->sin_port = number;
  if (address->sa_family == AF_INET6) reinterpret_cast<sockaddr_in6*>(address)->sin6_port = number;
}

int BoundPort(int socket) {
  sockaddr_storage storage{};
  socklen_t size = sizeof storage;
  if (getsockname(socket, reinterpret_cast<sockaddr*>(&storage), &size) != 0) return 0;
  return ntohs(storage.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6*>(&storage)->sin6_port
                                             : reinterpret_cast<sockaddr_in*>(&storage)->sin_port);
}

// A socket that listens at the address, or -1 and errno. Two daemons never share a port.
int OpenSocket(const sockaddr* address, socklen_t size, bool both_families) {
  const int fd = socket(address->sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (fd < 0) return -1;
  const int yes = 1, only_v6 = both_families ? 0 : 1;
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
  if (address->sa_family == AF_INET6) {
    setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &only_v6, sizeof only_v6);
  }
  if (bind(fd, address, size) == 0 && listen(fd, kBacklog) == 0) return fd;
  const int error = errno;
  close(fd);
  errno = error;
  return -1;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Listener>> Listener::Bind(const std::string& what,
                                                         const std::string& host, int port,
                                                         ConnectionLimits limits) {
  std::unique_ptr<Listener> listener(new Listener(what, limits));
  ATOLL_RETURN_IF_ERROR(listener->Listen(host, port));
  return listener;
}

absl::Status Listener::Listen(const std::string& host, int port) {
  stop_ = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
  if (stop_ < 0) return absl::ErrnoToStatus(errno, what_);
  // IPv6's wildcard takes IPv4, too, where this machine has IPv6.
  const bool wildcard = host == "0.0.0.0" || host == "::";
  sockaddr_in6 any{};
  any.sin6_family = AF_INET6;
  any.sin6_port = htons(static_cast<uint16_t>(port));
  if (wildcard) {
    const int fd = OpenSocket(reinterpret_cast<sockaddr*>(&any), sizeof any, true);
    if (fd >= 0) sockets_.push_back(fd);
  }
  addrinfo hints{}, *found = nullptr;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE;
  if (sockets_.empty()) {
    if (const int error = getaddrinfo(host.c_str(), nullptr, &hints, &found); error != 0) {
      return absl::UnavailableError(
          absl::StrCat(what_, ": cannot listen there: ", gai_strerror(error)));
    }
  }
  int error = 0;
  for (const addrinfo* each = found; each != nullptr; each = each->ai_next) {
    SetPort(each->ai_addr, sockets_.empty() ? port : BoundPort(sockets_[0]));
    const int fd = OpenSocket(each->ai_addr, each->ai_addrlen, false);
    if (fd >= 0) sockets_.push_back(fd);
    if (fd < 0 && (error == 0 || errno == EADDRINUSE)) error = errno;
  }
  if (found != nullptr) freeaddrinfo(found);
  if (sockets_.empty() || error == EADDRINUSE) {
    return absl::UnavailableError(absl::StrCat(
        what_, ": cannot listen there: ", std::strerror(error), "; is the port taken?"));
  }
  port_ = BoundPort(sockets_[0]);
  return absl::OkStatus();
}

Listener::~Listener() {
  Stop();
  if (stop_ >= 0) close(stop_);
}

void Listener::Start(OnConnection on_connection, MakeRoom make_room) {
  on_connection_ = std::move(on_connection);
  make_room_ = std::move(make_room);
  thread_ = std::thread([this] { Run(); });
}

void Listener::Stop() {
  const uint64_t one = 1;
  if (stop_ >= 0 && write(stop_, &one, sizeof one) < 0 && errno != EAGAIN) {
    LogError("net", what_, ": cannot be stopped: ", std::strerror(errno));
  }
  if (thread_.joinable()) thread_.join();
  for (const int socket : std::exchange(sockets_, {})) close(socket);
}

void Listener::Run() {
  std::vector<pollfd> polled = {{stop_, POLLIN, 0}};
  for (const int socket : sockets_) polled.push_back({socket, POLLIN, 0});
  while (true) {
    if (poll(polled.data(), polled.size(), -1) < 0 && errno != EINTR) {
      NoteRefusal(std::strerror(errno));
      poll(polled.data(), 1, kRetryMs);
    }
    if (polled[0].revents != 0) return;
    for (size_t i = 1; i < polled.size(); ++i) {
      if (polled[i].revents != 0) Accept(polled[i].fd);
      polled[i].revents = 0;
    }
  }
}

void Listener::Accept(int socket) {
  const int connection = accept4(socket, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
  if (connection < 0) {
    if (errno == EAGAIN || errno == EINTR || errno == ECONNABORTED) return;
    // No descriptor or no memory is left: what waits in the backlog waits on.
    NoteRefusal(std::strerror(errno));
    if (make_room_ != nullptr) make_room_("");
    pollfd stop{stop_, POLLIN, 0};
    poll(&stop, 1, kRetryMs);
    return;
  }
  const OpenConnections::Peer peer = OpenConnections::FindPeer(connection);
  const std::string& address = peer.address;
  if (address.empty() || (!HasRoom(address) && (make_room_ == nullptr || !make_room_(address)))) {
    close(connection);
    const std::lock_guard lock(mutex_);
    if (!address.empty()) open_.NoteFull(address);
    return;
  }
  const int yes = 1;
  setsockopt(connection, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
  {
    const std::lock_guard lock(mutex_);
    open_.Add(connection, peer);
  }
  on_connection_(connection, address);
}

int Listener::CountOpen(const std::string& peer) {
  const std::lock_guard lock(mutex_);
  return open_.Count(peer);
}

bool Listener::HasRoom(const std::string& peer) {
  const std::lock_guard lock(mutex_);
  return open_.HasRoom(peer);
}

void Listener::NoteRefusal(const std::string& why) {
  const std::lock_guard lock(mutex_);
  open_.NoteRefusal(why);
}

}  // namespace atl
