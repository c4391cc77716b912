#include "common/net/proxy_tunnels.h"

#include <arpa/inet.h>
#include <curl/curl.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <list>
#include <map>
#include <mutex>
#include <optional>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/event_loop.h"
#include "common/http/proxy.h"
#include "common/logging.h"
#include "common/net/pump.h"

namespace atl {
namespace {

constexpr size_t kConnectionsMax = 512;
constexpr size_t kTunnelsMax = 1024;
constexpr long kConnectSeconds = 5;  // as long as a handshake may take
constexpr int kTurnMs = 1000, kPauseMs = 100;
constexpr Duration kWarningPause = std::chrono::seconds(10);

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

static_assert(CURL_WAIT_POLLIN == POLLIN && CURL_WAIT_POLLOUT == POLLOUT);

void AddTo(std::vector<curl_waitfd>* waiting, int descriptor, short events) {
  waiting->push_back({events == 0 ? -1 : descriptor, events, 0});
}

using Handle = std::unique_ptr<CURL, decltype(&curl_easy_cleanup)>;

Handle MakeConnect(const std::string& proxy, const std::string& target, char* why) {
  Handle curl(curl_easy_init(), &curl_easy_cleanup);
  if (curl == nullptr) return curl;
  curl_easy_setopt(curl.get(), CURLOPT_ERRORBUFFER, why);
  curl_easy_setopt(curl.get(), CURLOPT_NOSIGNAL, 1L);
  curl_easy_setopt(curl.get(), CURLOPT_QUICK_EXIT, 1L);  // no wait for its resolver
  curl_easy_setopt(curl.get(), CURLOPT_URL, absl::StrCat("http://", target, "/").c_str());
  curl_easy_setopt(curl.get(), CURLOPT_PROXY, proxy.c_str());
  curl_easy_setopt(curl.get(), CURLOPT_NOPROXY, "");
  curl_easy_setopt(curl.get(), CURLOPT_HTTPPROXYTUNNEL, 1L);
  curl_easy_setopt(curl.get(), CURLOPT_CONNECT_ONLY, 1L);
  curl_easy_setopt(curl.get(), CURLOPT_SUPPRESS_CONNECT_HEADERS, 1L);
  curl_easy_setopt(curl.get(), CURLOPT_CONNECTTIMEOUT, kConnectSeconds);
  curl_easy_setopt(curl.get(), CURLOPT_TIMEOUT, kConnectSeconds);
  return curl;
}

// Listens for the connections to one target.
struct Tunnel {
  const Descriptor listener;
  const std::string local, proxy, target;
  Instant used_at{};
  std::optional<Instant> warned_at;
};

struct Connection {
  Connection(int from, std::shared_ptr<Tunnel> to)
      : tunnel(std::move(to)),
        near(from),
        connect(MakeConnect(tunnel->proxy, tunnel->target, why.data())) {}

  const std::shared_ptr<Tunnel> tunnel;
  const Descriptor near;
  std::array<char, CURL_ERROR_SIZE> why{};
  Handle connect;  // until the proxy has answered
  std::optional<Descriptor> far;
  std::optional<Pump> pump;
};

}  // namespace

// All tunnels, and a thread that carries their connections.
class ProxyTunnels::Carrier {
 public:
  Carrier() : multi_((curl_global_init(CURL_GLOBAL_DEFAULT), curl_multi_init())) {}
  ~Carrier();

  absl::Status Start();
  absl::StatusOr<std::string> Route(const std::string& target, const std::string& proxy);

 private:
  void Run();
  void Accept(const std::shared_ptr<Tunnel>& tunnel, Instant now);
  void EndConnects(Instant now);
  void OnConnect(Connection& connection, CURLcode code, Instant now);
  bool DropUnused();

  CURLM* const multi_;  // of the thread
  std::mutex mutex_;    // guards all below
  bool stopping_ = false;
  bool accepts_ = true;  // false for a turn: no descriptor or memory was left
  std::map<std::string, std::shared_ptr<Tunnel>> tunnels_;  // by target
  std::list<Connection> connections_;
  std::thread thread_;
};

absl::Status ProxyTunnels::Carrier::Start() {
  if (multi_ == nullptr) return absl::ResourceExhaustedError("no memory for tunnels to the proxy");
  try {
    thread_ = std::thread([this] { Run(); });
  } catch (const std::system_error& error) {
    return absl::ResourceExhaustedError(absl::StrCat("a thread for the proxy: ", error.what()));
  }
  return absl::OkStatus();
}

ProxyTunnels::Carrier::~Carrier() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  if (thread_.joinable()) {
    curl_multi_wakeup(multi_);
    thread_.join();
  }
  for (Connection& one : connections_) {
    if (one.connect != nullptr) curl_multi_remove_handle(multi_, one.connect.get());
  }
  connections_.clear();
  curl_multi_cleanup(multi_);
}

void ProxyTunnels::Carrier::Run() {
  std::vector<curl_waitfd> waiting;
  std::vector<std::shared_ptr<Tunnel>> listening;
  std::unique_lock lock(mutex_);
  while (!stopping_) {
    waiting.clear();
    listening.clear();
    for (const Connection& one : connections_) {
      if (!one.pump) continue;
      AddTo(&waiting, one.near.get(), one.pump->near_events());
      AddTo(&waiting, one.far->get(), one.pump->far_events());
    }
    for (const auto& [target, tunnel] : tunnels_) {
      if (!accepts_) break;
      listening.push_back(tunnel);
      waiting.push_back({tunnel->listener.get(), CURL_WAIT_POLLIN, 0});
    }
    const int turn_ms = std::exchange(accepts_, true) ? kTurnMs : kPauseMs;
    lock.unlock();
    curl_multi_poll(multi_, waiting.data(), static_cast<unsigned>(waiting.size()), turn_ms,
                    nullptr);
    lock.lock();
    const Instant now = SteadyNow();
    size_t at = 0;
    std::erase_if(connections_, [&](Connection& one) {
      if (!one.pump) return false;
      const bool near = (waiting[at++].revents & CURL_WAIT_POLLIN) != 0;
      const bool far = (waiting[at++].revents & CURL_WAIT_POLLIN) != 0;
      return !one.pump->Turn(near, far, now);
    });
    for (const auto& tunnel : listening) {
      if (waiting[at++].revents != 0) Accept(tunnel, now);
    }
    EndConnects(now);
  }
}

void ProxyTunnels::Carrier::Accept(const std::shared_ptr<Tunnel>& tunnel, Instant now) {
  const int from = accept4(tunnel->listener.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
  const int error = errno;
  if (from < 0) {
    if (error != EAGAIN && error != EINTR && error != ECONNABORTED) accepts_ = false;
    return;
  }
  tunnel->used_at = now;
  Connection& one = connections_.emplace_back(from, tunnel);
  const bool connects = connections_.size() <= kConnectionsMax && one.connect != nullptr &&
                        curl_easy_setopt(one.connect.get(), CURLOPT_PRIVATE, &one) == CURLE_OK &&
                        curl_multi_add_handle(multi_, one.connect.get()) == CURLM_OK;
  if (!connects) connections_.pop_back();
}

// Goes on with what the proxy has to answer.
void ProxyTunnels::Carrier::EndConnects(Instant now) {
  int count = 0;
  curl_multi_perform(multi_, &count);
  while (const CURLMsg* const message = curl_multi_info_read(multi_, &count)) {
    Connection* one = nullptr;
    curl_easy_getinfo(message->easy_handle, CURLINFO_PRIVATE, &one);
    OnConnect(*one, message->data.result, now);
    if (one->pump) continue;
    connections_.remove_if([&](const Connection& other) { return &other == one; });
  }
}

// Takes the descriptor over from the handle, which closes its own.
void ProxyTunnels::Carrier::OnConnect(Connection& connection, CURLcode code, Instant now) {
  curl_socket_t socket = CURL_SOCKET_BAD;
  if (code == CURLE_OK) curl_easy_getinfo(connection.connect.get(), CURLINFO_ACTIVESOCKET, &socket);
  if (socket != CURL_SOCKET_BAD) {
    connection.far.emplace(fcntl(socket, F_DUPFD_CLOEXEC, 0));
    if (connection.far->get() >= 0)
      connection.pump.emplace(connection.near.get(), connection.far->get(), now);
  }
  curl_multi_remove_handle(multi_, connection.connect.get());
  connection.connect.reset();
  Tunnel& tunnel = *connection.tunnel;
  if (connection.pump || (tunnel.warned_at && now < *tunnel.warned_at + kWarningPause)) return;
  tunnel.warned_at = now;
  LogWarning("net", "no connection to ", tunnel.target, " through the proxy ",
             WithoutPassword(tunnel.proxy), ": ",
             connection.why[0] != 0 ? connection.why.data() : curl_easy_strerror(code));
}

// False: all are in use.
bool ProxyTunnels::Carrier::DropUnused() {
  auto oldest = tunnels_.end();
  for (auto it = tunnels_.begin(); it != tunnels_.end(); ++it) {
    const bool used = std::any_of(connections_.begin(), connections_.end(),
                                  [&](const auto& one) { return one.tunnel == it->second; });
    if (used || (oldest != tunnels_.end() && it->second->used_at >= oldest->second->used_at))
      continue;
    oldest = it;
  }
  if (oldest == tunnels_.end()) return false;
  tunnels_.erase(oldest);
  return true;
}

absl::StatusOr<std::string> ProxyTunnels::Carrier::Route(const std::string& target,
                                                         const std::string& proxy) {
  const std::lock_guard lock(mutex_);
  const auto known = tunnels_.find(target);
  if (known != tunnels_.end()) {
    known->second->used_at = SteadyNow();
    return known->second->local;
  }
  if (tunnels_.size() >= kTunnelsMax && !DropUnused()) {
    return absl::ResourceExhaustedError(absl::StrCat(target, ": more than ", kTunnelsMax,
                                                     " endpoints are reached through the proxy"));
  }
  int port = 0;
  const int listener = ListenOnLoopback(&port);
  if (listener < 0) {
    return absl::ErrnoToStatus(errno, absl::StrCat(target, ": no tunnel to it through the proxy"));
  }
  LogInfo("net", target, " is reached through the proxy ", WithoutPassword(proxy));
  const std::string local = absl::StrCat("tcp://127.0.0.1:", port);
  tunnels_[target].reset(new Tunnel{Descriptor(listener), local, proxy, target, SteadyNow(), {}});
  curl_multi_wakeup(multi_);
  return local;
}

ProxyTunnels::ProxyTunnels() = default;
ProxyTunnels::~ProxyTunnels() = default;

absl::StatusOr<std::string> ProxyTunnels::Route(const std::string& endpoint) {
  absl::string_view target = endpoint;
  if (!absl::ConsumePrefix(&target, "tcp://")) return endpoint;
  if (const size_t source = target.rfind(';'); source != target.npos)
    target.remove_prefix(source + 1);
  const std::string proxy = FindProxy(target.substr(0, target.rfind(':')));
  if (proxy.empty()) return endpoint;
  const std::lock_guard lock(mutex_);
  if (carrier_ == nullptr) {
    auto carrier = std::make_unique<Carrier>();
    ATOLL_RETURN_IF_ERROR(carrier->Start());
    carrier_ = std::move(carrier);
  }
  return carrier_->Route(std::string(target), proxy);
}

}  // namespace atl
