// Tests of what keeps a server's listener listening, and a part of its connections for others.

#include "common/net/listener.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <chrono>
#include <condition_variable>
#include <set>
#include <thread>

#include "common/net/accept_guard.h"
#include "common/net/endpoint.h"
#include "common/net/peer/peer_link.h"
#include "common/net/tensor/tensor_client.h"
#include "tests/catch/limits.h"

namespace atl {
namespace {

// A server that keeps every connection open.
class Server {
 public:
  explicit Server(ConnectionLimits limits, Listener::MakeRoom make_room = nullptr) {
    auto bound = Listener::Bind("--listen 127.0.0.1:0", "127.0.0.1", 0, limits);
    REQUIRE(bound.ok());
    listener_ = *std::move(bound);
    listener_->Start(
        [this](int connection, const std::string& peer) {
          const std::lock_guard lock(mutex_);
          open_.insert(connection);
          peers_.push_back(peer);
          changed_.notify_all();
        },
        std::move(make_room));
  }
  ~Server() {
    listener_->Stop();
    CloseAll();
  }
  // Returns whether so many connections are taken in the end.
  bool Takes(size_t count) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, std::chrono::seconds(60),
                             [&] { return peers_.size() >= count; });
  }
  void CloseAll() {
    const std::lock_guard lock(mutex_);
    for (const int connection : std::exchange(open_, {})) close(connection);
  }
  std::vector<std::string> peers() {
    const std::lock_guard lock(mutex_);
    return peers_;
  }
  Listener& listener() { return *listener_; }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::set<int> open_;
  std::vector<std::string> peers_;
  std::unique_ptr<Listener> listener_;
};

class Client {
 public:
  explicit Client(const char* from = "127.0.0.1") : socket_(socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in own{};
    own.sin_family = AF_INET;
    REQUIRE(inet_pton(AF_INET, from, &own.sin_addr) == 1);
    REQUIRE(bind(socket_, reinterpret_cast<sockaddr*>(&own), sizeof own) == 0);
  }
  ~Client() { close(socket_); }
  Client(Client&& other) noexcept : socket_(std::exchange(other.socket_, -1)) {}
  Client& Connect(int port) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    REQUIRE(connect(socket_, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0);
    return *this;
  }
  // Waits for the server to end the connection.
  bool IsEnded() const {
    const timeval limit{60, 0};
    setsockopt(socket_, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    char byte;
    const ssize_t got = recv(socket_, &byte, 1, 0);
    return got == 0 || (got < 0 && errno == ECONNRESET);
  }

 private:
  int socket_;
};

TEST_CASE("one_address_takes_its_share_of_the_connections_and_leaves_the_others") {
  Server server({4, 2});
  const int port = server.listener().port();
  std::vector<Client> clients(2);
  for (Client& client : clients) client.Connect(port);
  REQUIRE(server.Takes(2));
  Client third;
  CHECK(third.Connect(port).IsEnded());
  Client other("127.0.0.2"), another("127.0.0.3");
  other.Connect(port);
  another.Connect(port);
  REQUIRE(server.Takes(4));
  CHECK(server.peers()[2] == "127.0.0.2");
  Client beyond("127.0.0.4");
  CHECK(beyond.Connect(port).IsEnded());
  CHECK(server.listener().CountOpen("127.0.0.1") == 2);
  server.CloseAll();  // without a word to the listener
  Client later;
  later.Connect(port);
  CHECK(server.Takes(5));
}

TEST_CASE("the_listener_outlives_a_lack_of_descriptors") {
  Server server({100, 100});
  const int port = server.listener().port();
  Client first, second;
  first.Connect(port);
  REQUIRE(server.Takes(1));
  rlimit before;
  REQUIRE(getrlimit(RLIMIT_NOFILE, &before) == 0);
  const rlimit none{1, before.rlim_max};
  REQUIRE(setrlimit(RLIMIT_NOFILE, &none) == 0);
  second.Connect(port);  // the kernel takes it, accept() cannot
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  const size_t taken = server.peers().size();
  REQUIRE(setrlimit(RLIMIT_NOFILE, &before) == 0);
  CHECK(taken == 1);
  CHECK(server.Takes(2));
}

TEST_CASE("a_link_that_gets_no_descriptor_is_refused_and_ends_no_process") {
  rlimit before;
  REQUIRE(getrlimit(RLIMIT_NOFILE, &before) == 0);
  const rlimit none{1, before.rlim_max};
  REQUIRE(setrlimit(RLIMIT_NOFILE, &none) == 0);
  const absl::Status status = TensorClient::Create({}).status();
  const absl::Status of_peers = PeerLink::Create({.name = "w"}, nullptr).status();
  REQUIRE(setrlimit(RLIMIT_NOFILE, &before) == 0);
  CHECK(absl::IsResourceExhausted(status));
  CHECK(absl::IsResourceExhausted(of_peers));
  CHECK(TensorClient::Create({}).ok());
}

TEST_CASE("room_that_the_server_makes_is_used") {
  int requests = 0;
  Server server({1, 1}, [&](const std::string& peer) {
    ++requests;
    return peer == "127.0.0.1";
  });
  const int port = server.listener().port();
  Client first, second, other("127.0.0.2");
  first.Connect(port);
  REQUIRE(server.Takes(1));
  second.Connect(port);
  REQUIRE(server.Takes(2));
  CHECK(other.Connect(port).IsEnded());
  server.listener().Stop();
  CHECK(requests == 2);
}

TEST_CASE("a_taken_port_is_an_error_and_a_part_of_the_descriptors_stays_for_files") {
  const auto first = Listener::Bind("--listen x", "127.0.0.1", 0, {10, 10});
  REQUIRE(first.ok());
  const auto second = Listener::Bind("--listen x", "127.0.0.1", (*first)->port(), {10, 10});
  CHECK(absl::IsUnavailable(second.status()));
  CHECK_FALSE(Listener::Bind("--listen x", "no.such.host.invalid", 0, {10, 10}).ok());
  rlimit limit;
  REQUIRE(getrlimit(RLIMIT_NOFILE, &limit) == 0);
  const ConnectionLimits share = ShareOfDescriptors(1 << 30);
  CHECK(static_cast<rlim_t>(share.connections) <= limit.rlim_cur / 2);
  CHECK(share.by_peer <= share.connections / 2 + 8);
}

// ---- sockets of libzmq ----

template <typename Condition>
bool WaitUntil(const Condition& condition) {
  const auto until = std::chrono::steady_clock::now() + testing::kHangLimit;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > until) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

// A client that has shaken hands as libzmq does, and then sends or stays silent.
class ZmqClient {
 public:
  ZmqClient(ZmqContext& context, const std::string& from, int port)
      : dealer_(*context.MakeTensorSocket(ZMQ_DEALER)), watch_(*WatchConnection(context, dealer_)) {
    const int never = -1;
    REQUIRE(zmq_setsockopt(dealer_.get(), ZMQ_RECONNECT_IVL, &never, sizeof never) == 0);
    const std::string endpoint = absl::StrCat("tcp://", from, ":0;127.0.0.1:", port);
    REQUIRE(zmq_connect(dealer_.use(), endpoint.c_str()) == 0);
  }
  ~ZmqClient() { zmq_socket_monitor(dealer_.get(), nullptr, 0); }
  bool IsEnded() {
    while (const auto event = NextConnectionEvent(watch_, nullptr)) {
      ended_ = event == ConnectionEvent::kLost || event == ConnectionEvent::kHandshakeFailed;
    }
    return ended_;
  }
  bool Send(absl::string_view text) {
    Message message = Message::Of(text);
    return WaitUntil([&] { return dealer_.Send({&message, 1}) == SendOutcome::kSent; });
  }

 private:
  Socket dealer_;
  SocketMonitor watch_;
  bool ended_ = false;
};

TEST_CASE("strangers_to_a_zeromq_socket_are_bounded_by_address_and_time") {
  const auto context = *ZmqContext::Create(1);
  Socket router = *context->MakeTensorSocket(ZMQ_ROUTER);
  const auto guard = *AcceptGuard::Create(*context, router, /*needs_sessions=*/true);
  const std::string endpoint = *Bind(router, "tcp://127.0.0.1:*");
  const int port = std::atoi(endpoint.substr(endpoint.rfind(':') + 1).c_str());
  const Instant begin{}, later = begin + AcceptGuard::kSessionWithin;

  constexpr size_t kMost = AcceptGuard::kStrangersMax.by_peer, kBeyond = 40;
  std::vector<std::unique_ptr<ZmqClient>> flood;
  const auto ended = [&] {
    return std::count_if(flood.begin(), flood.end(), [](auto& each) { return each->IsEnded(); });
  };
  for (size_t i = 0; i < kMost + kBeyond; ++i) {
    flood.push_back(std::make_unique<ZmqClient>(*context, "127.0.0.2", port));
  }
  CHECK(WaitUntil([&] { return guard->Run(begin), ended() >= std::ssize(flood) - int{kMost}; }));
  CHECK(ended() == kBeyond);

  ZmqClient member(*context, "127.0.0.3", port);
  std::vector<Message> parts;
  const auto receive = [&] {
    return WaitUntil([&] { return guard->Run(begin), router.Receive(&parts, 2); });
  };
  REQUIRE(member.Send("hello"));
  REQUIRE(receive());
  guard->Trust(parts[1], begin);
  CHECK(WaitUntil([&] { return guard->Run(later), ended() == std::ssize(flood); }));
  CHECK_FALSE(member.IsEnded());
  REQUIRE(member.Send("more"));
  REQUIRE(receive());
  CHECK(parts[1].text() == "more");
  flood.clear();
  zmq_socket_monitor(router.get(), nullptr, 0);
}

}  // namespace
}  // namespace atl
