#include "worker/profiler/link_profiler.h"

#include <catch2/catch.hpp>

#include "common/net/testing/peer_fixture.h"
#include "tests/catch/limits.h"

namespace atl::worker {
namespace {

TEST_CASE("links to all peers are fitted from real messages, which the others drop") {
  TestPeer a("a"), b("b"), c("c");
  Meet(Plan(1), {&a, &b, &c});
  LinkProfileOptions options;
  options.message_timeout = kPatience;
  options.bytes_max = 64 << 10;
  std::vector<NodeId> probed;
  options.progress = [&](size_t, size_t count, const NodeId& to) {
    CHECK(count == 2);
    probed.push_back(to);
  };
  const LinksFound found = ProfileLinks(*a.link, {"b", "c"}, options);
  CHECK(found.failed.empty());
  CHECK(probed == std::vector<NodeId>{"b", "c"});
  REQUIRE(found.links.size() == 2);
  for (const LinkProfile& link : found.links) {
    CHECK(link.from == "a");
    CHECK(link.bandwidth_bytes_per_s > 1e6);  // loopback, however busy
    CHECK(link.latency_ns >= 0);
    CHECK(link.samples == 3 * 5);
    REQUIRE_FALSE(link.times.empty());
    CHECK(link.times.back().bytes == 64 << 10);
  }
  CHECK(found.links[1].to == "c");
  const PeerDelivery probe = b.Receive(PeerChannel::kTensor);
  CHECK(IsProbe(probe.header));
  CHECK(probe.payload.size() == 1024);  // the first of the warming ones
  CHECK_FALSE(IsProbe("activation"));
}

TEST_CASE("a peer that is not there is named, the others are measured all the same") {
  TestPeer a("a"), b("b");
  Meet(Plan(1), {&a, &b});
  LinkProfileOptions options;
  options.message_timeout = kPatience;
  options.bytes_max = 64 << 10;
  const LinksFound found = ProfileLinks(*a.link, {"x", "b"}, options);
  REQUIRE(found.failed.size() == 1);
  CHECK(found.failed[0].to == "x");
  REQUIRE(found.links.size() == 1);
  CHECK(found.links[0].to == "b");
}

TEST_CASE("samples_of_a_link_with_two_edges_are_of_both_where_both_are_connected") {
  PeerLinkOptions two;
  two.more_endpoints = {"tcp://127.0.0.2:*"};
  TestPeer a("a", two), b("b", two);
  b.link->SetTemporaryPeers({a.member}, kPatience);
  LinkProfileOptions options;
  options.message_timeout = kPatience;
  options.bytes_max = 64 << 10;
  const LinksFound both = ProfileLinksDuringSteps(*a.link, {b.member}, options, kPatience);
  REQUIRE(both.links.size() == 1);
  CHECK(both.links[0].to == "b");
  CHECK(both.links[0].samples == 2 * 3 * 5);
  CHECK(both.links[0].times.empty());

  IslandMember half = b.member;
  half.more_endpoints = {"tcp://127.0.0.2:1"};
  const LinksFound first = atl::testing::WithGrowingLimit(
      std::chrono::milliseconds(500),
      [&](Duration limit) { return ProfileLinksDuringSteps(*a.link, {half}, options, limit); },
      [](const LinksFound& found) { return found.links.size() == 1; });
  REQUIRE(first.links.size() == 1);
  CHECK(first.links[0].samples == 3 * 5);
  CHECK(!first.links[0].times.empty());
}

}  // namespace
}  // namespace atl::worker
