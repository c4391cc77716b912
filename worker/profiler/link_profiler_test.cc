#include "worker/profiler/link_profiler.h"

#include <catch2/catch.hpp>

#include "common/net/peer_fixture.h"

namespace atl::worker {
namespace {

TEST_CASE("links to all peers are fitted from real messages, which the others drop") {
  TestPeer a("a"), b("b"), c("c");
  Meet(Plan(1), {&a, &b, &c});
  LinkProfileOptions options;
  options.bytes_max = 64 << 10;
  std::vector<NodeId> asked;
  options.progress = [&](size_t, size_t count, const NodeId& to) {
    CHECK(count == 2);
    asked.push_back(to);
  };
  const LinksFound found = ProfileLinks(*a.link, {"b", "c"}, options);
  CHECK(found.failed.empty());
  CHECK(asked == std::vector<NodeId>{"b", "c"});
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
  const PeerDelivery probe = b.Hear(PeerChannel::kTensor);
  CHECK(IsProbe(probe.header));
  CHECK(probe.payload.size() == 1024);  // the first of the warming ones
  CHECK_FALSE(IsProbe("activation"));
}

TEST_CASE("a peer that is not there is named, the others are measured all the same") {
  TestPeer a("a"), b("b");
  Meet(Plan(1), {&a, &b});
  LinkProfileOptions options;
  options.bytes_max = 64 << 10;
  const LinksFound found = ProfileLinks(*a.link, {"x", "b"}, options);
  REQUIRE(found.failed.size() == 1);
  CHECK(found.failed[0].to == "x");
  REQUIRE(found.links.size() == 1);
  CHECK(found.links[0].to == "b");
}

}  // namespace
}  // namespace atl::worker
