#include "common/net/tcp_probe.h"

#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"

namespace atl {

bool WithSocket(const std::string& address, int flags, const char** error,
                absl::FunctionRef<bool(int fd, const addrinfo& at)> use) {
  const size_t colon = address.rfind(':');
  std::string host = address.substr(0, colon);
  if (host.size() > 1 && host.front() == '[') host = host.substr(1, host.size() - 2);
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE;
  addrinfo* found = nullptr;
  const int code = getaddrinfo(host.c_str(), address.substr(colon + 1).c_str(), &hints, &found);
  if (code != 0) {
    *error = gai_strerror(code);
    return false;
  }
  bool done = false;
  for (const addrinfo* at = found; at != nullptr && !done; at = at->ai_next) {
    const int fd = socket(at->ai_family, at->ai_socktype | SOCK_CLOEXEC | flags, at->ai_protocol);
    if (fd >= 0) done = use(fd, *at);
    if (!done) *error = std::strerror(errno);
    if (fd >= 0) close(fd);
  }
  freeaddrinfo(found);
  return done;
}

bool IsListening(const std::string& address) {
  const char* error = "";
  return WithSocket(address, 0, &error, [](int fd, const addrinfo& at) {
    return connect(fd, at.ai_addr, at.ai_addrlen) == 0;
  });
}

absl::Status CheckCanListen(const std::string& address) {
  const char* error = "";
  const bool can = WithSocket(address, 0, &error, [](int fd, const addrinfo& at) {
    const int yes = 1;  // as servers do: connections of an earlier one may still linger
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    return bind(fd, at.ai_addr, at.ai_addrlen) == 0;
  });
  if (can) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat(address, ": cannot listen there: ", error));
}

}  // namespace atl
