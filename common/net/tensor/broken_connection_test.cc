// A connection that breaks in the middle of a transfer while both ends live on: TCP through a relay
// on loopback that the test cuts.

#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <catch2/catch.hpp>
#include <mutex>
#include <thread>

#include "absl/strings/str_cat.h"
#include "common/net/testing/test_handler.h"
#include "common/rng.h"

namespace atl {
namespace {

constexpr int64_t kChunkBytes = 4096;

sockaddr_in Loopback(int port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return address;
}

// Passes bytes on between those that connect to it and a port on loopback.
class Relay {
 public:
  explicit Relay(int target_port) : target_port_(target_port) {
    listener_ = socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in address = Loopback(0);
    socklen_t size = sizeof address;
    auto* generic = reinterpret_cast<sockaddr*>(&address);
    REQUIRE(bind(listener_, generic, size) == 0);
    REQUIRE(listen(listener_, 16) == 0);
    REQUIRE(getsockname(listener_, generic, &size) == 0);
    endpoint_ = absl::StrCat("tcp://127.0.0.1:", ntohs(address.sin_port));
    acceptor_ = std::thread([this] { Accept(); });
  }

  ~Relay() {
    shutdown(listener_, SHUT_RDWR);
    acceptor_.join();
    Cut();
    for (std::thread& thread : pumps_) thread.join();
    for (const auto& pair : pairs_) {
      for (const int end : pair) close(end);
    }
    close(listener_);
  }

  const std::string& endpoint() const { return endpoint_; }

  // Breaks every connection there is; later ones are passed on.
  void Cut() {
    const std::lock_guard lock(mutex_);
    for (const auto& pair : pairs_) {
      for (const int end : pair) shutdown(end, SHUT_RDWR);
    }
  }

 private:
  void Accept() {
    for (int near; (near = accept(listener_, nullptr, nullptr)) >= 0;) {
      const int far = socket(AF_INET, SOCK_STREAM, 0);
      const sockaddr_in address = Loopback(target_port_);
      if (connect(far, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
        close(near);
        close(far);
        continue;
      }
      const std::lock_guard lock(mutex_);
      pairs_.push_back({near, far});
      pumps_.emplace_back([near, far] { Pump(near, far); });
    }
  }

  static void Pump(int near, int far) {
    std::array<char, 16 << 10> buffer;
    std::array<pollfd, 2> ends = {pollfd{near, POLLIN, 0}, pollfd{far, POLLIN, 0}};
    while (poll(ends.data(), ends.size(), -1) > 0) {
      for (size_t i = 0; i < 2; ++i) {
        if (ends[i].revents == 0) continue;
        const ssize_t count = recv(ends[i].fd, buffer.data(), buffer.size(), 0);
        bool passed = count > 0;
        for (ssize_t done = 0; passed && done < count;) {
          const ssize_t sent = send(ends[1 - i].fd, buffer.data() + done,
                                    static_cast<size_t>(count - done), MSG_NOSIGNAL);
          passed = sent > 0;
          done += sent;
        }
        if (passed) continue;
        for (const pollfd& end : ends) shutdown(end.fd, SHUT_RDWR);
        return;
      }
    }
  }

  const int target_port_;
  int listener_ = -1;
  std::string endpoint_;
  std::thread acceptor_;
  std::mutex mutex_;  // guards what follows, while the acceptor runs
  std::vector<std::array<int, 2>> pairs_;
  std::vector<std::thread> pumps_;
};

// Slow enough for cuts to fall in the middle.
struct RelayedLink : TestLink {
  RelayedLink()
      : TestLink({.bandwidth_limit_bytes_per_s = 2e6},
                 {.chunk_bytes = kChunkBytes, .bandwidth_limit_bytes_per_s = 2e6}),
        relay(std::stoi(address.endpoint.substr(address.endpoint.rfind(':') + 1))) {
    address.endpoint = relay.endpoint();
  }
  ~RelayedLink() { client.reset(); }

  Relay relay;
};

Values SomeValues(size_t count) {
  Rng rng(1);
  auto values = std::make_shared<std::vector<float>>(count);
  for (float& value : *values) value = static_cast<float>(rng.Normal());
  return values;
}

const PushId kPush{"job-1", 0, 1, 1, 0, 1};
constexpr int64_t kElements = 250'000, kBytes = kElements * 4;
constexpr std::array<int64_t, 3> kCutsAtBytes = {100'000, 400'000, 700'000};

TEST_CASE("push over a connection cut three times: the server takes every byte once") {
  RelayedLink link;
  const Values values = SomeValues(kElements);
  Awaited<PushResult> push = link.StartPush(kPush, values);
  for (const int64_t at_bytes : kCutsAtBytes) {
    while (link.server->counters().payload_bytes_received < at_bytes) std::this_thread::yield();
    link.relay.Cut();
  }
  REQUIRE(push.Get().status.ToString() == "OK");
  REQUIRE(push.Get().push_status == PushStatus::kStaged);
  REQUIRE(*link.handler.Staged(kPush) == *values);
  REQUIRE(link.handler.deliveries() == 1);
  REQUIRE(link.handler.admissions() == 1);
  REQUIRE(link.server->counters().payload_bytes_received == kBytes);
  REQUIRE(link.client->counters().restarts >= std::ssize(kCutsAtBytes));
}

TEST_CASE("pull over a connection cut three times: the client takes every byte once") {
  RelayedLink link;
  const Values values = SomeValues(kElements);
  link.handler.Hold(1, values, 9);
  std::vector<float> pulled(values->size());
  Awaited<PullResult> pull = link.StartPull({"job-1", 9, 1}, pulled);
  for (const int64_t at_bytes : kCutsAtBytes) {
    while (link.client->counters().payload_bytes_received < at_bytes) std::this_thread::yield();
    link.relay.Cut();
  }
  REQUIRE(pull.Get().status.ToString() == "OK");
  REQUIRE(pull.Get().version == 9);
  REQUIRE(pulled == *values);
  REQUIRE(link.client->counters().payload_bytes_received == kBytes);
  REQUIRE(link.client->counters().restarts >= std::ssize(kCutsAtBytes));
}

TEST_CASE("connection cut after the last chunk of a push: no byte is sent again") {
  RelayedLink link;
  link.handler.HoldAnswers(true);
  const Values values = SomeValues(10'000);
  Awaited<PushResult> push = link.StartPush(kPush, values);
  const ReplyToken token = link.handler.AwaitHeld();
  link.relay.Cut();
  while (link.server->counters().restarts == 0) std::this_thread::yield();
  link.server->AcknowledgePush(token, PushStatus::kStaged);
  REQUIRE(push.Get().status.ToString() == "OK");
  REQUIRE(push.Get().push_status == PushStatus::kStaged);
  REQUIRE(link.handler.deliveries() == 1);
  REQUIRE(link.client->counters().payload_bytes_sent == 40'000);
}

}  // namespace
}  // namespace atl
