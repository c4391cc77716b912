#include "common/net/proxy_tunnels.h"

#include <arpa/inet.h>
#include <curl/curl.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
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

constexpr size_t kConnectionsMax = 1024;
constexpr size_t kTunnelsMax = 1024;
constexpr long kConnectSeconds = 5;  // as long as a handshake may take
constexpr long kWaitSeconds = 600;   // at a relay; then another one waits
constexpr int kTurnMs = 1000, kPauseMs = 100;
constexpr int kSpareMin = 2, kSpareMax = 16;  // wait at a relay
constexpr Duration kFailedPause = std::chrono::seconds(1);
constexpr Duration kWarningPause = std::chrono::seconds(10);

int MakeSocket() { return socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0); }

sockaddr_in LoopbackAddress(int port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(static_cast<uint16_t>(port));
  return address;
}

// -1, and errno: there is no descriptor or port left.
int ListenOnLoopback(int* port) {
  const int listener = MakeSocket();
  if (listener < 0) return -1;
  sockaddr_in address = LoopbackAddress(0);
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

// False: nothing listens there.
bool ConnectToLoopback(int descriptor, int port) {
  const sockaddr_in address = LoopbackAddress(port);
  return connect(descriptor, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0 ||
         errno == EINPROGRESS;
}

static_assert(CURL_WAIT_POLLIN == POLLIN && CURL_WAIT_POLLOUT == POLLOUT);

void AddTo(std::vector<curl_waitfd>* waiting, int descriptor, short events) {
  waiting->push_back({events == 0 ? -1 : descriptor, events, 0});
}

// Describes connections to one target, through a proxy or a relay.
struct Tunnel {
  bool waits() const { return listener.get() < 0; }

  const Descriptor listener;  // none: they wait at the relay, and go to the port when it answers
  const int port;             // of 127.0.0.1
  const std::string proxy, target;
  const std::string name;  // for messages
  Instant used_at{}, next_try{};
  std::optional<Instant> warned_at;
  int pending = 0, open = 0;  // connections: not answered yet, answered
  bool ended = false;
};

// A word in a request's place of a host and port.
std::string TargetFrom(const std::string& word) { return absl::StrCat(word, ":1"); }

using Handle = std::unique_ptr<CURL, decltype(&curl_easy_cleanup)>;

Handle MakeConnect(const Tunnel& tunnel, char* why) {
  Handle curl(curl_easy_init(), &curl_easy_cleanup);
  if (curl == nullptr) return curl;
  curl_easy_setopt(curl.get(), CURLOPT_ERRORBUFFER, why);
  curl_easy_setopt(curl.get(), CURLOPT_NOSIGNAL, 1L);
  curl_easy_setopt(curl.get(), CURLOPT_QUICK_EXIT, 1L);  // no wait for its resolver
  curl_easy_setopt(curl.get(), CURLOPT_URL, absl::StrCat("http://", tunnel.target, "/").c_str());
  curl_easy_setopt(curl.get(), CURLOPT_PROXY, tunnel.proxy.c_str());
  curl_easy_setopt(curl.get(), CURLOPT_NOPROXY, "");
  curl_easy_setopt(curl.get(), CURLOPT_HTTPPROXYTUNNEL, 1L);
  curl_easy_setopt(curl.get(), CURLOPT_CONNECT_ONLY, 1L);
  curl_easy_setopt(curl.get(), CURLOPT_SUPPRESS_CONNECT_HEADERS, 1L);
  curl_easy_setopt(curl.get(), CURLOPT_TCP_KEEPALIVE, 1L);
  curl_easy_setopt(curl.get(), CURLOPT_TCP_KEEPIDLE, 30L);
  curl_easy_setopt(curl.get(), CURLOPT_TCP_KEEPINTVL, 10L);
  const long limit = tunnel.waits() ? kWaitSeconds : kConnectSeconds;
  curl_easy_setopt(curl.get(), CURLOPT_CONNECTTIMEOUT, limit);
  curl_easy_setopt(curl.get(), CURLOPT_TIMEOUT, limit);
  return curl;
}

struct Connection {
  Connection(CURLM* of, int from, std::shared_ptr<Tunnel> to)
      : multi(of), tunnel(std::move(to)), near(from), connect(MakeConnect(*tunnel, why.data())) {
    const int yes = 1;
    setsockopt(from, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
    ++tunnel->pending;
  }
  ~Connection() {
    EndConnect();
    --(pump ? tunnel->open : tunnel->pending);
  }
  // Without effect the second time.
  void EndConnect() {
    if (connect != nullptr) curl_multi_remove_handle(multi, connect.get());
    connect.reset();
  }

  CURLM* const multi;
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
  absl::StatusOr<std::string> Route(const std::string& proxy, const std::string& target,
                                    const std::string& name);
  void Await(int port, std::vector<std::shared_ptr<Tunnel>> relays);

 private:
  void Run();
  void Wait(Instant now);
  void Accept(const std::shared_ptr<Tunnel>& tunnel, Instant now);
  bool Begin(const std::shared_ptr<Tunnel>& tunnel, int near);
  void EndConnects(Instant now);
  void OnConnect(Connection& connection, CURLcode code, Instant now);
  bool DropUnused();

  CURLM* const multi_;  // of the thread
  std::mutex mutex_;    // guards all below
  bool stopping_ = false;
  bool accepts_ = true;  // false for a turn: no descriptor or memory was left
  std::map<std::pair<std::string, std::string>, std::shared_ptr<Tunnel>>
      tunnels_;                                                 // by proxy and target
  std::map<int, std::vector<std::shared_ptr<Tunnel>>> relays_;  // by port: where connections wait
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
    const Instant begin = SteadyNow();
    Wait(begin);
    bool pauses = !std::exchange(accepts_, true);
    for (const Connection& one : connections_) {
      if (!one.pump) continue;
      AddTo(&waiting, one.near.get(), one.pump->near_events());
      AddTo(&waiting, one.far->get(), one.pump->far_events());
    }
    const bool accepts = !pauses;
    for (const auto& [to, tunnel] : tunnels_) {
      if (!accepts) break;
      if (begin < tunnel->next_try) {
        pauses = true;
        continue;
      }
      listening.push_back(tunnel);
      waiting.push_back({tunnel->listener.get(), CURL_WAIT_POLLIN, 0});
    }
    lock.unlock();
    curl_multi_poll(multi_, waiting.data(), static_cast<unsigned>(waiting.size()),
                    pauses ? kPauseMs : kTurnMs, nullptr);
    lock.lock();
    const Instant now = SteadyNow();
    size_t at = 0;
    std::erase_if(connections_, [&](Connection& one) {
      if (!one.pump) return one.tunnel->ended;
      const bool near = (waiting[at++].revents & CURL_WAIT_POLLIN) != 0;
      const bool far = (waiting[at++].revents & CURL_WAIT_POLLIN) != 0;
      return one.tunnel->ended || !one.pump->Turn(near, far, now);
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
  Begin(tunnel, from);
}

// Keeps as many waiting as are in use at a time, within limits.
void ProxyTunnels::Carrier::Wait(Instant now) {
  for (const auto& [port, tunnels] : relays_) {
    for (const auto& tunnel : tunnels) {
      while (now >= tunnel->next_try &&
             tunnel->pending < std::min(kSpareMax, kSpareMin + tunnel->open)) {
        if (!Begin(tunnel, MakeSocket())) tunnel->next_try = now + kFailedPause;
      }
    }
  }
}

// False: there are too many connections, or no memory or descriptor is left.
bool ProxyTunnels::Carrier::Begin(const std::shared_ptr<Tunnel>& tunnel, int near) {
  Connection& one = connections_.emplace_back(multi_, near, tunnel);
  const bool begins = near >= 0 && connections_.size() <= kConnectionsMax &&
                      one.connect != nullptr &&
                      curl_easy_setopt(one.connect.get(), CURLOPT_PRIVATE, &one) == CURLE_OK &&
                      curl_multi_add_handle(multi_, one.connect.get()) == CURLM_OK;
  if (!begins) connections_.pop_back();
  return begins;
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
  Tunnel& tunnel = *connection.tunnel;
  curl_socket_t socket = CURL_SOCKET_BAD;
  if (code == CURLE_OK) curl_easy_getinfo(connection.connect.get(), CURLINFO_ACTIVESOCKET, &socket);
  if (socket != CURL_SOCKET_BAD) {
    connection.far.emplace(fcntl(socket, F_DUPFD_CLOEXEC, 0));
    if (connection.far->get() >= 0 &&
        (!tunnel.waits() || ConnectToLoopback(connection.near.get(), tunnel.port))) {
      connection.pump.emplace(connection.near.get(), connection.far->get(), now);
      --tunnel.pending;
      ++tunnel.open;
    }
  }
  connection.EndConnect();
  if (connection.pump || (tunnel.waits() && code == CURLE_OPERATION_TIMEDOUT)) return;
  tunnel.next_try = now + kFailedPause;
  if (tunnel.warned_at && now < *tunnel.warned_at + kWarningPause) return;
  tunnel.warned_at = now;
  LogWarning("net", "no connection to ", tunnel.name, ": ",
             connection.why[0] != 0 ? connection.why.data() : curl_easy_strerror(code));
}

// False: all are in use.
bool ProxyTunnels::Carrier::DropUnused() {
  auto oldest = tunnels_.end();
  for (auto it = tunnels_.begin(); it != tunnels_.end(); ++it) {
    const Tunnel& tunnel = *it->second;
    const bool used = tunnel.pending + tunnel.open > 0;
    if (used || (oldest != tunnels_.end() && tunnel.used_at >= oldest->second->used_at)) continue;
    oldest = it;
  }
  if (oldest == tunnels_.end()) return false;
  tunnels_.erase(oldest);
  return true;
}

absl::StatusOr<std::string> ProxyTunnels::Carrier::Route(const std::string& proxy,
                                                         const std::string& target,
                                                         const std::string& name) {
  const std::lock_guard lock(mutex_);
  auto known = tunnels_.find({proxy, target});
  if (known == tunnels_.end()) {
    if (tunnels_.size() >= kTunnelsMax && !DropUnused()) {
      return absl::ResourceExhaustedError(absl::StrCat(name, ": more than ", kTunnelsMax,
                                                       " endpoints are reached through tunnels"));
    }
    int port = 0;
    const int listener = ListenOnLoopback(&port);
    if (listener < 0) return absl::ErrnoToStatus(errno, absl::StrCat(name, ": no tunnel to it"));
    LogInfo("net", "a tunnel leads to ", name);
    known = tunnels_.emplace(std::pair(proxy, target), nullptr).first;
    known->second.reset(new Tunnel{Descriptor(listener), port, proxy, target, name});
    curl_multi_wakeup(multi_);
  }
  known->second->used_at = SteadyNow();
  return absl::StrCat("tcp://127.0.0.1:", known->second->port);
}

void ProxyTunnels::Carrier::Await(int port, std::vector<std::shared_ptr<Tunnel>> relays) {
  const std::lock_guard lock(mutex_);
  std::vector<std::shared_ptr<Tunnel>>& present = relays_[port];
  for (const auto& former : present) {
    former->ended = true;
    for (auto& each : relays) {
      if (each->proxy != former->proxy || each->target != former->target) continue;
      former->ended = false;
      each = former;
    }
  }
  present = std::move(relays);
  if (present.empty()) relays_.erase(port);
  curl_multi_wakeup(multi_);
}

ProxyTunnels::ProxyTunnels() = default;
ProxyTunnels::~ProxyTunnels() = default;

absl::StatusOr<ProxyTunnels::Carrier*> ProxyTunnels::GetCarrier() {
  const std::lock_guard lock(mutex_);
  if (carrier_ == nullptr) {
    auto carrier = std::make_unique<Carrier>();
    ATOLL_RETURN_IF_ERROR(carrier->Start());
    carrier_ = std::move(carrier);
  }
  return carrier_.get();
}

absl::StatusOr<std::string> ProxyTunnels::Route(const std::string& endpoint,
                                                const std::string& word) {
  if (endpoint == kOwnRelay) return RouteToOwnRelay(word);
  absl::string_view target = endpoint;
  if (!absl::ConsumePrefix(&target, "tcp://")) return endpoint;
  if (!word.empty()) {
    ATOLL_ASSIGN_OR_RETURN(const std::string relay, FindRelay(endpoint));
    ATOLL_ASSIGN_OR_RETURN(Carrier* const carrier, GetCarrier());
    return carrier->Route(relay, TargetFrom(word),
                          absl::StrCat("a member through the relay ", target));
  }
  if (const size_t source = target.rfind(';'); source != target.npos)
    target.remove_prefix(source + 1);
  const std::string proxy = FindProxy(target.substr(0, target.rfind(':')));
  if (proxy.empty()) return endpoint;
  ATOLL_ASSIGN_OR_RETURN(Carrier* const carrier, GetCarrier());
  return carrier->Route(proxy, std::string(target),
                        absl::StrCat(target, " through the proxy ", WithoutPassword(proxy)));
}

void ProxyTunnels::UseOwnRelay(const std::string& address, const std::string& secret) {
  const std::lock_guard lock(mutex_);
  own_relay_ = address;
  own_secret_ = secret;
}

// No proxy is between this process and itself.
absl::StatusOr<std::string> ProxyTunnels::RouteToOwnRelay(const std::string& text) {
  std::string relay, secret;
  {
    const std::lock_guard lock(mutex_);
    relay = own_relay_;
    secret = own_secret_;
  }
  if (relay.empty()) return absl::FailedPreconditionError("no member can wait here");
  ATOLL_ASSIGN_OR_RETURN(Carrier* const carrier, GetCarrier());
  return carrier->Route(absl::StrCat("http://", relay), TargetFrom(SignRelayText(secret, text)),
                        absl::StrCat("the member ", text, ", which connects itself"));
}

// Returns a proxy's URL.
absl::StatusOr<std::string> ProxyTunnels::FindRelay(const std::string& endpoint) {
  ATOLL_ASSIGN_OR_RETURN(const std::string route, Route(endpoint));
  return absl::StrCat("http://", absl::StripPrefix(route, "tcp://"));
}

absl::Status ProxyTunnels::Await(int port, const std::vector<LinkWay>& relays) {
  std::vector<std::shared_ptr<Tunnel>> tunnels;
  for (const LinkWay& way : relays) {
    ATOLL_ASSIGN_OR_RETURN(const std::string relay, FindRelay(way.endpoint));
    const absl::string_view address = absl::StripPrefix(way.endpoint, "tcp://");
    tunnels.emplace_back(new Tunnel{Descriptor(), port, relay, TargetFrom(way.word),
                                    absl::StrCat("the relay ", address, ", to wait there")});
  }
  ATOLL_ASSIGN_OR_RETURN(Carrier* const carrier, GetCarrier());
  carrier->Await(port, std::move(tunnels));
  return absl::OkStatus();
}

}  // namespace atl
