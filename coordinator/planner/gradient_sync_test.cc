#include "coordinator/planner/gradient_sync.h"

#include <catch2/catch.hpp>

namespace atl::plan {
namespace {

// One layer of 1 MB of gradients, and sites with so many devices each, all replicas of one stage:
// 1 GB/s and 1 ms within sites, 10 MB/s and 20 ms between them.
struct Replicas {
  Cluster cluster;
  Costs costs;
  Layout layout;

  explicit Replicas(const std::vector<int>& per_site)
      : costs(Model{"one", {Layer{"l", 250'000, 1e9, 1000, 1000}}}, {}, {}) {
    cluster.types = {{"d", 1e12, 1e12, int64_t{1} << 34, 1e10}};
    cluster.site_link = {1e-3, 1e9};
    cluster.wan_link = {20e-3, 1e7};
    for (size_t site = 0; site < per_site.size(); ++site) {
      for (int i = 0; i < per_site[site]; ++i) {
        const int device = static_cast<int>(cluster.devices.size());
        const std::string name = absl::StrCat("d", device);
        cluster.devices.push_back({name, name, absl::StrCat("s", site), 0});
        layout.replicas.push_back({{Stage{{device}, 0, 1}}, 1});
      }
    }
  }

  double Seconds(bool one_ring = false) {
    layout.one_ring = one_ring;
    return SyncSeconds(ClusterIndex(cluster), costs, layout);
  }
};

TEST_CASE("sums_of_two_sites_cross_the_link_once_each_way_however_many_replicas_there_are") {
  for (const int each : {1, 2, 8}) {
    Replicas replicas({each, each});
    const double latency_s = 2 * 20e-3 + (each > 1 ? 2 * 1e-3 : 0);
    CHECK(replicas.Seconds() == Approx(1e6 / 1e7 + latency_s));
  }
}

TEST_CASE("link_between_unequal_sites_carries_their_members_parts_of_the_gradient") {
  Replicas replicas({3, 1, 1});
  // 3 + 1 of 5 parts between the large site and a small one.
  CHECK(replicas.Seconds() == Approx(0.8e6 / 1e7 + 2 * 20e-3 + 2 * 1e-3));
}

TEST_CASE("at_one_site_sums_by_site_are_a_ring") {
  Replicas replicas({6});
  CHECK(replicas.Seconds() == Approx(replicas.Seconds(true)));
}

TEST_CASE("ring_over_sites_takes_longer_than_sums_by_site") {
  Replicas replicas({4, 4});
  CHECK(replicas.Seconds(true) > 1.5 * replicas.Seconds());
}

TEST_CASE("a_ring_waits_for_messages_of_stages_that_its_nodes_card_carries_meanwhile") {
  Replicas replicas({4});
  const double ready_s = 1;
  const StageTimes ready(4, std::vector<double>{ready_s});
  const auto end_s = [&](const std::vector<StageMessage>& messages) {
    return SynchroniseGradients(replicas.cluster, replicas.costs, replicas.layout, ready,
                                messages)[0][0];
  };
  const double alone_s = end_s({});
  const double message_bytes = 0.5e6;  // half a millisecond on the card
  CHECK(end_s({{0, 1, ready_s, message_bytes}}) == Approx(alone_s + 0.5e-3));
  CHECK(end_s({{0, 1, ready_s + 0.5e-3, message_bytes}}) == Approx(alone_s + 0.5e-3));
  CHECK(end_s({{0, 1, alone_s + 1, message_bytes}}) == Approx(alone_s));    // later
  CHECK(end_s({{0, 1, ready_s - 0.1, message_bytes}}) == Approx(alone_s));  // sent already
}

}  // namespace
}  // namespace atl::plan
