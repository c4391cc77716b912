#include "common/net/proxy_tunnels.h"

#include <arpa/inet.h>
#include <curl/curl.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <list>
#include <map>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/logging.h"
#include "common/proxy.h"

namespace atl {
namespace {

constexpr int kConnectionsMax = 256;  // of one tunnel
constexpr int kTunnelsMax = 1024;
constexpr int kConnectSeconds = 5;  // as long as a handshake may take
constexpr auto kWarningPause = std::chrono::seconds(10);
constexpr size_t kBufferBytes = size_t{256} << 10;  // of each direction

class Descriptor {
 public:
  explicit Descriptor(int value = -1) : value_(value) {}
  ~Descriptor() {
    if (value_ >= 0) close(value_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int get() const { return value_; }

 private:
  const int value_;
};

// -1, and errno: there is no descriptor or port left.
int ListenOnLoopback(int* port) {
  const int listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (listener < 0) return -1;
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  auto* const at = reinterpret_cast<sockaddr*>(&address);
  if (bind(listener, at, size) != 0 || listen(listener, SOMAXCONN) != 0 ||
      getsockname(listener, at, &size) != 0) {
    const int error = errno;
    close(listener);
    errno = error;
    return -1;
  }
  *port = ntohs(address.sin_port);
  return listener;
}

// One direction of a connection. Both descriptors do not block.
class Flow {
 public:
  Flow(int from, int to) : from_(from), to_(to), buffer_(kBufferBytes) {}

  bool WantsToRead() const { return !ended_ && end_ < buffer_.size(); }
  bool WantsToWrite() const { return begin_ < end_; }
  bool done() const { return ended_ && !WantsToWrite(); }

  // False: the connection has failed.
  bool Read() {
    const ssize_t got = recv(from_, buffer_.data() + end_, buffer_.size() - end_, 0);
    if (got < 0) return errno == EAGAIN || errno == EINTR;
    if (got == 0) ended_ = true;
    end_ += static_cast<size_t>(got);
    return true;
  }

  bool Write() {
    const ssize_t sent = send(to_, buffer_.data() + begin_, end_ - begin_, MSG_NOSIGNAL);
    if (sent < 0) return errno == EAGAIN || errno == EINTR;
    begin_ += static_cast<size_t>(sent);
    if (begin_ == end_) begin_ = end_ = 0;
    return true;
  }

  // Passes the end of the stream on, once.
  void PassEnd() {
    if (done() && !std::exchange(passed_, true)) shutdown(to_, SHUT_WR);
  }

 private:
  const int from_, to_;
  std::vector<char> buffer_;
  size_t begin_ = 0, end_ = 0;
  bool ended_ = false, passed_ = false;
};

// Until both ends have closed, one has failed, or `stop` is readable.
void Pump(int a, int b, int stop) {
  Flow forth(a, b), back(b, a);
  while (!forth.done() || !back.done()) {
    const auto events = [](const Flow& in, const Flow& out) {
      return static_cast<short>((in.WantsToRead() ? POLLIN : 0) |
                                (out.WantsToWrite() ? POLLOUT : 0));
    };
    std::array<pollfd, 3> waiting{
        {{stop, POLLIN, 0}, {a, events(forth, back), 0}, {b, events(back, forth), 0}}};
    // A side that nothing is wanted of would report its hang-up again and again.
    for (pollfd& one : waiting) {
      if (one.events == 0) one.fd = -1;
    }
    if (poll(waiting.data(), waiting.size(), -1) < 0 && errno != EINTR) return;
    if (waiting[0].revents != 0) return;
    const auto ready = [](const pollfd& at, int what) {
      return (at.revents & (what | POLLERR | POLLHUP)) != 0;
    };
    if (ready(waiting[1], POLLIN) && forth.WantsToRead() && !forth.Read()) return;
    if (ready(waiting[2], POLLIN) && back.WantsToRead() && !back.Read()) return;
    if (forth.WantsToWrite() && !forth.Write()) return;
    if (back.WantsToWrite() && !back.Write()) return;
    forth.PassEnd();
    back.PassEnd();
  }
}

// Ends a call within a second once `stop`, a descriptor, is readable.
int EndIfStopped(void* stop, curl_off_t, curl_off_t, curl_off_t, curl_off_t) {
  pollfd waiting{*static_cast<const int*>(stop), POLLIN, 0};
  return poll(&waiting, 1, 0) == 1 ? 1 : 0;
}

// The descriptor of its connection is open as long as the handle.
using Handle = std::unique_ptr<CURL, decltype(&curl_easy_cleanup)>;

absl::StatusOr<int> ConnectThrough(CURL* curl, const std::string& proxy, const std::string& target,
                                   int stop) {
  std::array<char, CURL_ERROR_SIZE> why{};
  curl_easy_setopt(curl, CURLOPT_ERRORBUFFER, why.data());
  curl_easy_setopt(curl, CURLOPT_NOSIGNAL, 1L);
  curl_easy_setopt(curl, CURLOPT_URL, absl::StrCat("http://", target, "/").c_str());
  curl_easy_setopt(curl, CURLOPT_PROXY, proxy.c_str());
  curl_easy_setopt(curl, CURLOPT_NOPROXY, "");
  curl_easy_setopt(curl, CURLOPT_HTTPPROXYTUNNEL, 1L);
  curl_easy_setopt(curl, CURLOPT_CONNECT_ONLY, 1L);
  curl_easy_setopt(curl, CURLOPT_SUPPRESS_CONNECT_HEADERS, 1L);
  curl_easy_setopt(curl, CURLOPT_CONNECTTIMEOUT, static_cast<long>(kConnectSeconds));
  curl_easy_setopt(curl, CURLOPT_TIMEOUT, static_cast<long>(kConnectSeconds));
  curl_easy_setopt(curl, CURLOPT_NOPROGRESS, 0L);
  curl_easy_setopt(curl, CURLOPT_XFERINFOFUNCTION, &EndIfStopped);
  curl_easy_setopt(curl, CURLOPT_XFERINFODATA, &stop);
  const CURLcode code = curl_easy_perform(curl);
  curl_socket_t socket = CURL_SOCKET_BAD;
  if (code == CURLE_OK) curl_easy_getinfo(curl, CURLINFO_ACTIVESOCKET, &socket);
  curl_easy_setopt(curl, CURLOPT_ERRORBUFFER, nullptr);
  curl_easy_setopt(curl, CURLOPT_NOPROGRESS, 1L);
  if (socket != CURL_SOCKET_BAD) return socket;
  return absl::UnavailableError(why[0] != 0 ? why.data() : curl_easy_strerror(code));
}

}  // namespace

// Listens for the connections of one target. Threads: one that accepts, one a connection.
class ProxyTunnels::Tunnel {
 public:
  // `stop`: becomes readable, and stays so, when everything is to end.
  Tunnel(std::unique_ptr<Descriptor> listener, std::string local, std::string proxy,
         std::string target, int stop)
      : listener_(std::move(listener)),
        local_(std::move(local)),
        proxy_(std::move(proxy)),
        target_(std::move(target)),
        stop_(stop),
        accepting_([this] { Accept(); }) {}
  // REQUIRES: `stop` is readable.
  ~Tunnel() {
    accepting_.join();
    for (Carried& one : carried_) one.thread.join();
  }
  const std::string& local() const { return local_; }

 private:
  struct Carried {
    std::thread thread;
    std::atomic<bool> over = false;
  };

  void Accept() {
    for (;;) {
      std::array<pollfd, 2> waiting{{{stop_, POLLIN, 0}, {listener_->get(), POLLIN, 0}}};
      if (poll(waiting.data(), waiting.size(), -1) < 0 && errno != EINTR) return;
      if (waiting[0].revents != 0) return;
      const int from = accept4(listener_->get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
      carried_.remove_if([](Carried& one) {
        if (!one.over) return false;
        one.thread.join();
        return true;
      });
      if (from < 0) {
        if (errno == EMFILE || errno == ENFILE) usleep(10'000);  // and the connection waits
        continue;
      }
      if (carried_.size() >= kConnectionsMax) {
        close(from);
        continue;
      }
      Carried& one = carried_.emplace_back();
      one.thread = std::thread([this, from, &one] {
        Carry(from);
        one.over = true;
      });
    }
  }

  void Carry(int from) {
    const Descriptor local(from);
    const Handle curl(curl_easy_init(), &curl_easy_cleanup);
    if (curl == nullptr) return;
    const absl::StatusOr<int> remote = ConnectThrough(curl.get(), proxy_, target_, stop_);
    if (remote.ok()) return Pump(local.get(), *remote, stop_);
    const std::lock_guard lock(mutex_);
    const auto now = std::chrono::steady_clock::now();
    if (warned_at_ && now < *warned_at_ + kWarningPause) return;
    warned_at_ = now;
    LogWarning("net", "no connection to ", target_, " through the proxy ", WithoutPassword(proxy_),
               ": ", remote.status().message());
  }

  const std::unique_ptr<Descriptor> listener_;
  const std::string local_, proxy_, target_;
  const int stop_;
  std::list<Carried> carried_;  // of the accepting thread, and then of the destructor
  std::mutex mutex_;
  std::optional<std::chrono::steady_clock::time_point> warned_at_;  // guarded by mutex_
  std::thread accepting_;
};

struct ProxyTunnels::State {
  State() { curl_global_init(CURL_GLOBAL_DEFAULT); }
  ~State() { eventfd_write(stop.get(), 1); }

  const Descriptor stop{eventfd(0, EFD_CLOEXEC)};
  std::map<std::string, std::unique_ptr<Tunnel>> tunnels;  // by endpoint
};

ProxyTunnels::ProxyTunnels() = default;
ProxyTunnels::~ProxyTunnels() = default;

absl::StatusOr<std::string> ProxyTunnels::Route(const std::string& endpoint) {
  absl::string_view target = endpoint;
  if (!absl::ConsumePrefix(&target, "tcp://")) return endpoint;
  const std::string proxy = FindProxy(target.substr(0, target.rfind(':')));
  if (proxy.empty()) return endpoint;
  const std::lock_guard lock(mutex_);
  if (state_ == nullptr) state_ = std::make_unique<State>();
  const auto known = state_->tunnels.find(endpoint);
  if (known != state_->tunnels.end()) return known->second->local();
  if (state_->tunnels.size() >= kTunnelsMax) {
    return absl::ResourceExhaustedError(absl::StrCat(endpoint, ": more than ", kTunnelsMax,
                                                     " endpoints are reached through the proxy"));
  }
  int port = 0;
  auto listener = std::make_unique<Descriptor>(ListenOnLoopback(&port));
  if (listener->get() < 0 || state_->stop.get() < 0) {
    return absl::ErrnoToStatus(errno,
                               absl::StrCat(endpoint, ": no tunnel to it through the proxy"));
  }
  LogInfo("net", endpoint, " is reached through the proxy ", WithoutPassword(proxy));
  const std::string local = absl::StrCat("tcp://127.0.0.1:", port);
  state_->tunnels[endpoint] = std::make_unique<Tunnel>(std::move(listener), local, proxy,
                                                       std::string(target), state_->stop.get());
  return local;
}

}  // namespace atl
