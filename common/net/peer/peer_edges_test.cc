// Workers with endpoints in several networks: two addresses of loopback.

#include <catch2/catch.hpp>
#include <numeric>

#include "absl/strings/match.h"
#include "common/net/peer/edge_load.h"
#include "common/net/security.h"
#include "common/net/testing/breaking_proxy.h"
#include "common/net/testing/peer_fixture.h"

namespace atl {
namespace {

using namespace std::chrono_literals;
using enum PeerChannel;

PeerLinkOptions TwoEndpoints() {
  PeerLinkOptions options;
  options.more_endpoints = {"tcp://127.0.0.2:*"};
  options.chunk_bytes = 4096;
  return options;
}

int64_t Sum(const std::array<int64_t, kPeerEndpointsMax>& edges) {
  return std::accumulate(edges.begin(), edges.end(), int64_t{0});
}

// All of these come whole and in order, over every edge of `edges`.
void RequireAllArrive(TestPeer& from, TestPeer& to, int edges) {
  const std::vector<size_t> sizes = {3'000'001, 0, 1, 4096, 400'000, 7, 2'000'000};
  for (PeerChannel channel : {kTensor, kState, kCollective}) {
    for (size_t size : sizes) from.Say(to, channel, std::to_string(size), RandomText(size));
  }
  for (PeerChannel channel : {kTensor, kState, kCollective}) {
    for (size_t size : sizes) {
      const PeerDelivery delivery = to.Receive(channel);
      REQUIRE(delivery.header == std::to_string(size));
      const std::string text = RandomText(size);
      REQUIRE(delivery.payload.size() == static_cast<int64_t>(size));
      REQUIRE(std::equal(text.begin(), text.end(),
                         reinterpret_cast<const char*>(delivery.payload.data())));
    }
  }
  const PeerCounters sent = from.GetCounters(to.member.worker);
  const PeerCounters received = to.GetCounters(from.member.worker);
  REQUIRE(Sum(sent.edge_bytes_sent) == sent.payload_bytes_sent);
  REQUIRE(sent.edge_bytes_sent == received.edge_bytes_received);
  for (int edge = 0; edge < kPeerEndpointsMax; ++edge) {
    INFO("edge " << edge << ": " << sent.edge_bytes_sent[edge]);
    REQUIRE((sent.edge_bytes_sent[edge] > 0) == (edge < edges));
  }
}

TEST_CASE("messages come whole and in order over two edges, which both carry them") {
  TestPeer a("a", TwoEndpoints()), b("b", TwoEndpoints());
  REQUIRE(a.link->EdgesTo(b.member) == 2);
  Meet(Plan(1), {&a, &b});
  RequireAllArrive(a, b, 2);
  RequireAllArrive(b, a, 2);
  // Under another plan the same connections begin new sessions.
  Meet(Plan(2), {&a, &b});
  RequireAllArrive(a, b, 2);
}

TEST_CASE("bytes in bulk go over several connections of an edge; one that breaks loses the peer") {
  PeerLinkOptions options{.chunk_bytes = 4096};
  options.connections = 3;
  TestPeer a("a", options), b("b", {.chunk_bytes = 4096});
  BreakingProxy proxy(b.member.endpoint);
  IslandMember through = b.member;
  through.endpoint = proxy.endpoint();
  REQUIRE(a.link->SetPeers(Plan(1), {a.member, through}).ok());
  REQUIRE(b.link->SetPeers(Plan(1), {a.member, b.member}).ok());
  REQUIRE(a.link->AwaitPeers(In(kPatience)).ok());
  // Connections after the first are used as soon as they are there.
  do {
    RequireAllArrive(a, b, 1);
  } while (proxy.CountBusy(1'000'000) < 3);
  proxy.Break();
  a.AwaitLost("b");
}

TEST_CASE("with keys every edge is sealed") {
  PeerLinkOptions options = TwoEndpoints();
  options.keys = GenerateKeyPair().value();
  TestPeer a("a", options);
  options.keys = GenerateKeyPair().value();
  TestPeer b("b", options);
  Meet(Plan(1), {&a, &b});
  RequireAllArrive(a, b, 2);
  // A stranger's key is refused on the second endpoint too.
  options.keys = GenerateKeyPair().value();
  TestPeer stranger("c", options);
  CHECK(!stranger.link->Sample(b.member, 1, testing::kNothingComes).ok());
}

TEST_CASE("a worker with one endpoint has an edge to each of another one's") {
  TestPeer a("a", TwoEndpoints()), b("b", {.chunk_bytes = 4096});
  REQUIRE(a.link->EdgesTo(b.member) == 2);
  REQUIRE(b.link->EdgesTo(a.member) == 2);
  Meet(Plan(1), {&a, &b});
  RequireAllArrive(a, b, 2);
  RequireAllArrive(b, a, 2);
}

TEST_CASE("an edge that cannot be connected is not used") {
  TestPeer a("a", TwoEndpoints()), b("b", TwoEndpoints());
  b.member.more_endpoints = {"tcp://127.0.0.2:1"};
  Meet(Plan(1), {&a, &b});
  RequireAllArrive(a, b, 1);
}

TEST_CASE("an edge that is lost in use loses the peer, and what came before is a whole beginning") {
  TestPeer a("a", TwoEndpoints());
  PeerLinkOptions options = TwoEndpoints();
  options.more_endpoints = {"tcp://127.0.0.1:*"};
  TestPeer b("b", options);
  IslandMember through = b.member;
  BreakingProxy proxy(b.member.more_endpoints[0]);
  through.more_endpoints = {proxy.endpoint()};
  const auto meet = [&](const PeerFence& fence) {
    REQUIRE(a.link->SetPeers(fence, {a.member, through}).ok());
    REQUIRE(b.link->SetPeers(fence, {a.member, b.member}).ok());
    REQUIRE(a.link->AwaitPeers(In(kPatience)).ok());
    REQUIRE(b.link->AwaitPeers(In(kPatience)).ok());
  };
  meet(Plan(1));
  const std::string text = RandomText(1'000'000);
  for (int i = 0; i < 200; ++i) a.Say(b, kState, std::to_string(i), text);
  while (b.GetCounters("a").edge_bytes_received[1] == 0) std::this_thread::yield();
  proxy.Break();
  REQUIRE(absl::StrContains(a.AwaitLost("b"), "lost"));
  b.AwaitLost("a");
  const size_t came = b.CountReceived(kState);
  REQUIRE(came < 200);
  for (size_t i = 0; i < came; ++i) {
    const PeerDelivery delivery = b.Receive(kState);
    REQUIRE(delivery.header == std::to_string(i));
    REQUIRE(delivery.payload.size() == static_cast<int64_t>(text.size()));
  }
  meet(Plan(2));
  a.Say(b, kState, "again", text);
  REQUIRE(b.Receive(kState).header == "again");
}

TEST_CASE("samples are taken over the edge that is named") {
  TestPeer a("a", TwoEndpoints()), b("b", TwoEndpoints());
  b.link->SetTemporaryPeers({a.member}, kPatience);
  for (int edge : {0, 1}) {
    const auto sampler = a.link->Sample(b.member, edge, kPatience);
    REQUIRE(sampler.ok());
    REQUIRE((*sampler)->Time(100'000, kPatience).ok());
  }
}

TEST_CASE("a_slow_edge_takes_no_chunk_that_another_one_brings_sooner") {
  constexpr int64_t kChunk = 1000;
  const EdgeLoad fast{.backlog_bytes = 0, .bytes_per_s = 1000, .latency_s = 0};
  const EdgeLoad slow{.backlog_bytes = 0, .bytes_per_s = 100, .latency_s = 0};
  // 10 s for the chunk, in which the fast one brings 10,000 bytes.
  CHECK(TakesChunk(slow, {{fast}}, kChunk, 10'001));
  CHECK(!TakesChunk(slow, {{fast}}, kChunk, 9'999));
  CHECK(TakesChunk(fast, {{slow}}, kChunk, kChunk));
  // The backlog of the fast one counts, and how far it is.
  CHECK(TakesChunk(slow, {{{.backlog_bytes = 9'500, .bytes_per_s = 1000}}}, kChunk, kChunk));
  CHECK(TakesChunk(slow, {{{.bytes_per_s = 1000, .latency_s = 9.5}}}, kChunk, kChunk));
  // Without a rate nothing is known.
  CHECK(TakesChunk({}, {{fast}}, kChunk, kChunk));
  CHECK(TakesChunk(slow, {{EdgeLoad{}}}, kChunk, kChunk));
  CHECK(ReadEdgeLoad(-1, 7).backlog_bytes == 7);
  CHECK(ReadEdgeLoad(-1, 7).bytes_per_s == 0);
}

TEST_CASE("of_any_edges_one_takes_the_chunk") {
  Rng rng(20261127);
  for (int round = 0; round < 1000; ++round) {
    std::vector<EdgeLoad> edges(2 + rng.Below(3));
    for (EdgeLoad& edge : edges) {
      edge = {static_cast<double>(rng.Below(1'000'000)), static_cast<double>(rng.Below(1'000)),
              rng.Uniform()};
    }
    const auto left = static_cast<int64_t>(1000 + rng.Below(1'000'000));
    bool taken = false;
    for (size_t i = 0; i < edges.size(); ++i) {
      std::vector<EdgeLoad> others = edges;
      others.erase(others.begin() + static_cast<std::ptrdiff_t>(i));
      taken |= TakesChunk(edges[i], others, 1000, left);
    }
    REQUIRE(taken);
  }
}

TEST_CASE("more endpoints than an island may have are refused") {
  PeerLinkOptions options;
  options.name = "a";
  options.more_endpoints = std::vector<std::string>(4, "tcp://127.0.0.2:*");
  TestPeer handler("h");
  const auto link = PeerLink::Create(options, &handler);
  REQUIRE(absl::IsInvalidArgument(link.status()));
  REQUIRE(absl::StrContains(link.status().message(), "5 endpoints"));

  IslandMember member = handler.member;
  member.worker = "b";
  member.more_endpoints = options.more_endpoints;
  const absl::Status status = handler.link->SetPeers(Plan(1), {handler.member, member});
  REQUIRE(absl::IsInvalidArgument(status));
  REQUIRE(absl::StrContains(status.message(), "member b of the island"));
}

}  // namespace
}  // namespace atl
