// A connection that breaks in the middle of a transfer while both ends live on: TCP through a proxy
// on loopback.

#include <array>
#include <catch2/catch.hpp>
#include <thread>

#include "common/net/testing/breaking_proxy.h"
#include "common/net/testing/test_handler.h"
#include "common/rng.h"

namespace atl {
namespace {

constexpr int64_t kChunkBytes = 4096;

// Slow enough for cuts to fall in the middle.
struct ProxiedLink : TestLink {
  ProxiedLink()
      : TestLink({.bandwidth_limit_bytes_per_s = 2e6},
                 {.chunk_bytes = kChunkBytes, .bandwidth_limit_bytes_per_s = 2e6}),
        proxy(address.endpoint) {
    address.endpoint = proxy.endpoint();
  }
  ~ProxiedLink() { client.reset(); }

  BreakingProxy proxy;
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
  ProxiedLink link;
  const Values values = SomeValues(kElements);
  Awaited<PushResult> push = link.StartPush(kPush, values);
  for (const int64_t at_bytes : kCutsAtBytes) {
    while (link.server->counters().payload_bytes_received < at_bytes) std::this_thread::yield();
    link.proxy.Break();
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
  ProxiedLink link;
  const Values values = SomeValues(kElements);
  link.handler.Hold(1, values, 9);
  std::vector<float> pulled(values->size());
  Awaited<PullResult> pull = link.StartPull({"job-1", 9, 1}, pulled);
  for (const int64_t at_bytes : kCutsAtBytes) {
    while (link.client->counters().payload_bytes_received < at_bytes) std::this_thread::yield();
    link.proxy.Break();
  }
  REQUIRE(pull.Get().status.ToString() == "OK");
  REQUIRE(pull.Get().version == 9);
  REQUIRE(pulled == *values);
  REQUIRE(link.client->counters().payload_bytes_received == kBytes);
  REQUIRE(link.client->counters().restarts >= std::ssize(kCutsAtBytes));
}

TEST_CASE("connection cut after the last chunk of a push: no byte is sent again") {
  ProxiedLink link;
  link.handler.HoldAnswers(true);
  const Values values = SomeValues(10'000);
  Awaited<PushResult> push = link.StartPush(kPush, values);
  const ReplyToken token = link.handler.AwaitHeld();
  link.proxy.Break();
  while (link.server->counters().restarts == 0) std::this_thread::yield();
  link.server->AcknowledgePush(token, PushStatus::kStaged);
  REQUIRE(push.Get().status.ToString() == "OK");
  REQUIRE(push.Get().push_status == PushStatus::kStaged);
  REQUIRE(link.handler.deliveries() == 1);
  REQUIRE(link.client->counters().payload_bytes_sent == 40'000);
}

}  // namespace
}  // namespace atl
