#include "common/net/tcp_probe.h"

#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <functional>

#include "absl/strings/str_cat.h"

namespace atl {
namespace {

// Calls `use` with a socket for each socket address of "host:port" until it returns true. `error`:
// why none could be made.
bool WithSocket(const std::string& address, const char** error,
                const std::function<bool(int fd, const addrinfo& at)>& use) {
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
    const int fd = socket(at->ai_family, at->ai_socktype | SOCK_CLOEXEC, at->ai_protocol);
    if (fd >= 0) done = use(fd, *at);
    if (!done) *error = std::strerror(errno);
    if (fd >= 0) close(fd);
  }
  freeaddrinfo(found);
  return done;
}

}  // namespace

bool IsListening(const std::string& address) {
  const char* error = "";
  return WithSocket(address, &error, [](int fd, const addrinfo& at) {
    return connect(fd, at.ai_addr, at.ai_addrlen) == 0;
  });
}

absl::Status CheckCanListen(const std::string& address) {
  const char* error = "";
  const bool can = WithSocket(address, &error, [](int fd, const addrinfo& at) {
    const int yes = 1;  // as servers do: connections of an earlier one may still linger
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    return bind(fd, at.ai_addr, at.ai_addrlen) == 0;
  });
  if (can) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat(address, ": cannot listen there: ", error));
}

}  // namespace atl
