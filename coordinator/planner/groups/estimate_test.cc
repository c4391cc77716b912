#include "coordinator/planner/groups/estimate.h"

#include <algorithm>
#include <catch2/catch.hpp>

#include "coordinator/planner/gradient_sync.h"
#include "coordinator/planner/testing/models.h"

namespace atl::plan {
namespace {

// Two nodes of two devices at each of three sites; nodes of one name at all sites.
Cluster ThreeSites() {
  Cluster cluster;
  cluster.types = {*FindDeviceType("a100-80")};
  for (const char* site : {"a", "b", "c"}) {
    for (int d = 0; d < 4; ++d) {
      cluster.devices.push_back(
          {absl::StrCat(site, d), absl::StrCat("node", d / 2), site, /*type=*/0});
    }
  }
  cluster.site_link = {1e-3, 10e9};
  cluster.wan_link = {20e-3, 1e9};
  cluster.site_to_site[{"a", "b"}] = {5e-3, 2e9};
  cluster.site_to_site[{"b", "b"}] = {2e-3, 5e9};
  return cluster;
}

void CheckIndex(const Cluster& cluster) {
  const ClusterIndex index(cluster);
  CHECK(index.sites() == 3);
  CHECK(index.nodes() == 6);
  const int count = static_cast<int>(cluster.devices.size());
  for (int a = 0; a < count; ++a) {
    for (int b = 0; b < count; ++b) {
      const Device &from = cluster.devices[a], &to = cluster.devices[b];
      const bool one_site = from.site == to.site;
      CHECK((index.GetSiteIndex(a) == index.GetSiteIndex(b)) == one_site);
      CHECK((index.GetNode(a) == index.GetNode(b)) == (one_site && from.node == to.node));
      const Link own = cluster.LinkBetween(a, b), indexed = index.LinkBetween(a, b);
      CHECK(indexed.latency_s == own.latency_s);
      CHECK(indexed.bytes_per_s == own.bytes_per_s);
      CHECK(&index.LinkBetweenSites(index.GetSiteIndex(a), index.GetSiteIndex(b)) ==
            &cluster.LinkBetweenSites(from.site, to.site));
    }
  }
}

TEST_CASE("index_has_the_sites_nodes_and_links_of_the_cluster") {
  Cluster cluster = ThreeSites();
  CheckIndex(cluster);
  cluster.node_to_node[{"node0", "node1"}] = {3e-3, 3e9};
  CheckIndex(cluster);
  cluster.measured[{0, 11}] = {7e-3, 7e9};
  CheckIndex(cluster);
}

// `replicas` of two stages on sites a and b, in turn.
Layout AcrossSites(int replicas, int layers) {
  Layout layout{1, 1, "best", {}};
  for (int r = 0; r < replicas; ++r) {
    layout.replicas.push_back({{{{r}, 0, layers / 2}, {{4 + r}, layers / 2, layers}}, 16});
  }
  return layout;
}

TEST_CASE("estimate_fills_and_drains_at_the_pace_of_the_slowest_stage_or_of_the_shared_line") {
  const Cluster cluster = ThreeSites();
  const Costs costs(*FindModel("gpt2-large"), {}, {});
  const int layers = static_cast<int>(costs.model().layers.size());
  const StageCosts stage = costs.For(cluster.types[0], 1, 1);
  const double bytes = static_cast<double>(costs.model().layers[layers / 2 - 1].out_bytes);
  const ClusterIndex index(cluster);
  Estimator estimator(cluster, costs);
  for (const int replicas : {1, 4, 2, 1}) {  // what an estimate leaves behind does not matter
    INFO(replicas << " replicas");
    const Layout layout = AcrossSites(replicas, layers);
    const LayerTimes first = stage.Of(0, layers / 2);
    const double rate = 2e9 / replicas;
    const double fill_s = first.forward_s + first.backward_s + 2 * (5e-3 + bytes / rate);
    const double beat_s = std::max(
        {stage.TotalSeconds(0, layers / 2), stage.TotalSeconds(layers / 2, layers), bytes / rate});
    const double sync_s = SyncSeconds(index, costs, layout);
    CHECK((sync_s > 0) == (replicas > 1));
    CHECK(estimator.Seconds(layout) == Approx(fill_s + 16 * beat_s + sync_s));
    CHECK(estimator.Seconds(layout) == EstimateSeconds(cluster, costs, layout));
  }
}

// Two nodes of eight devices, `replicas` of a stage on each.
Layout AcrossNodes(int replicas, int layers) {
  Layout layout{1, 1, "1f1b", {}};
  layout.split_backward = false;
  for (int r = 0; r < replicas; ++r) {
    layout.replicas.push_back({{{{r}, 0, layers / 2}, {{8 + r}, layers / 2, layers}}, 16});
  }
  return layout;
}

TEST_CASE("messages_of_all_replicas_on_a_node_share_its_card") {
  Cluster cluster;
  cluster.types = {*FindDeviceType("a100-80")};
  for (int d = 0; d < 16; ++d) {
    cluster.devices.push_back(
        {absl::StrCat("d", d), absl::StrCat("node", d / 8), "site", /*type=*/0});
  }
  cluster.site_link = {50e-6, 1.25e9};  // 10 Gbit/s
  const Costs costs(*FindModel("gpt2-large"), {}, {});
  const int layers = static_cast<int>(costs.model().layers.size());
  const double message_s =
      static_cast<double>(costs.model().layers[layers / 2 - 1].out_bytes) / 1.25e9;
  const auto step_s = [&](int replicas) {
    const Layout layout = AcrossNodes(replicas, layers);
    const auto outcome = EvaluateLayout(cluster, costs, layout, {});
    REQUIRE(outcome.ok());
    const double messages_s = 16 * replicas * message_s;
    CHECK(outcome->step_s - outcome->sync_s >= messages_s);
    CHECK(EstimateSeconds(cluster, costs, layout) >= messages_s);
    return outcome->step_s - outcome->sync_s;
  };
  const double one_s = step_s(1);
  CHECK(step_s(8) > one_s);
}

TEST_CASE("messages_of_a_runtime_that_blocks_are_work_of_both_devices") {
  Cluster cluster = ThreeSites();
  cluster.devices.resize(4);
  const int layers = static_cast<int>(FindModel("gpt2-large")->layers.size());
  const Layout layout{.micro_batch = 1,
                      .schedule = "1f1b",
                      .replicas = {{{{{0}, 0, layers / 2}, {{2}, layers / 2, layers}}, 16}},
                      .split_backward = false};
  const auto step_s = [&](const Link& link, const RuntimeTraits& runtime) {
    cluster.site_link = link;
    const Costs costs(*FindModel("gpt2-large"), {}, {.runtime = runtime});
    const auto outcome = EvaluateLayout(cluster, costs, layout, {});
    REQUIRE(outcome.ok());
    const double estimate_s = EstimateSeconds(cluster, costs, layout);
    CHECK(estimate_s == Approx(outcome->step_s).epsilon(0.1));
    return outcome->step_s;
  };
  const Link slow{1e-3, 10e9}, fast{0, 1e18};
  const Costs costs(*FindModel("gpt2-large"), {}, {});
  const double message_s = slow.Seconds(static_cast<double>(costs.model().layers[0].out_bytes));
  const double blocked_s = step_s(slow, {.blocking_messages = true}) - step_s(fast, {});
  CHECK(blocked_s >= 30 * message_s);  // two in each of 16 micro-batches
  CHECK(blocked_s <= 36 * message_s);
}

}  // namespace
}  // namespace atl::plan
