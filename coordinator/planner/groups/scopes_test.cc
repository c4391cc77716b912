#include "coordinator/planner/groups/scopes.h"

#include <catch2/catch.hpp>
#include <map>
#include <string>

#include "coordinator/planner/candidates.h"
#include "coordinator/planner/testing/models.h"

namespace atl::plan {
namespace {

// Nodes of two devices, of two types in turn, at each of the sites.
Cluster Made(int sites, int nodes_each, double bytes_per_s) {
  Cluster cluster;
  cluster.types = {*FindDeviceType("a100-80"), *FindDeviceType("h20")};
  for (int n = 0; n < sites * nodes_each; ++n) {
    const std::string node = "n" + std::to_string(n), site = "site" + std::to_string(n % sites);
    for (int d = 0; d < 2; ++d) {
      cluster.devices.push_back({node + "." + std::to_string(d), node, site, n / sites % 2});
    }
  }
  cluster.wan_link = {5e-3, bytes_per_s};
  return cluster;
}

std::vector<Composition> ListCompositions(const Candidate& candidate,
                                          const std::vector<EntityPool>& pools) {
  std::map<int, size_t> pool_of;  // by an entity's first device
  for (size_t t = 0; t < pools.size(); ++t) {
    for (const std::vector<int>& entity : pools[t].entities) pool_of[entity[0]] = t;
  }
  std::vector<Composition> groups;
  for (const Replica& replica : candidate.layout.replicas) {
    Composition& group = groups.emplace_back(pools.size(), 0);
    for (const Stage& stage : replica.stages) ++group[pool_of.at(stage.devices[0])];
  }
  return groups;
}

TEST_CASE("No layout is estimated below what links between its sites take at least") {
  const int sites = GENERATE(2, 3, 4);
  const double bytes_per_s = GENERATE(1e7, 1e8, 1e9);
  INFO(sites << " sites, " << bytes_per_s << " bytes/s");
  const Cluster cluster = Made(sites, 2, bytes_per_s);
  const Costs costs(*FindModel("gpt2-medium"), {}, {});
  Job job{.global_batch = 64};
  job.micro_batches = {1, 2};
  absl::Status why_not, over_limit;
  for (const Candidate& candidate :
       Enumerate(cluster, costs, job, nullptr, &why_not, &over_limit)) {
    const int micro_batch = candidate.layout.micro_batch;
    const auto pools = BuildEntityPools(cluster, costs, candidate.sizes, micro_batch);
    const SiteFloor floor(cluster, costs, job, pools, micro_batch);
    const double seconds = floor.EstimateStepSeconds(ListCompositions(candidate, pools), 0);
    INFO(candidate.how << ", " << candidate.layout.replicas.size() << " replicas");
    CHECK(seconds <= candidate.estimate_s * (1 + 1e-9));
  }
}

TEST_CASE("Gradients of groups within sites and messages of groups across them take the links") {
  const Cluster cluster = Made(2, 1, 1e7);
  const Costs costs(*FindModel("gpt2-medium"), {}, {});
  const Job job{.global_batch = 64};
  const auto pools = BuildEntityPools(cluster, costs, 1, 1);
  REQUIRE(pools.size() == 2);
  const SiteFloor floor(cluster, costs, job, pools, 1);
  const double gradients_s = static_cast<double>(costs.model().parameters()) * kGradientBytes / 1e7;
  CHECK(floor.EstimateStepSeconds({{2, 0}, {0, 2}}, 3) == Approx(3 + gradients_s));
  CHECK(floor.EstimateStepSeconds({{2, 0}}, 3) == 3);
  const double message_s = static_cast<double>(costs.model().layers[1].out_bytes) / 1e7;
  CHECK(floor.EstimateStepSeconds({{2, 2}}, 0) == Approx(64 * message_s));
  CHECK(floor.EstimateStepSeconds({{2, 2}}, 1e6) == 1e6);
}

TEST_CASE("One site has no floor") {
  const Cluster cluster = Made(1, 2, 1e7);
  const Costs costs(*FindModel("gpt2-medium"), {}, {});
  const Job job{.global_batch = 64};
  const auto pools = BuildEntityPools(cluster, costs, 1, 1);
  const SiteFloor floor(cluster, costs, job, pools, 1);
  CHECK(floor.EstimateStepSeconds({Composition(pools.size(), 1)}, 3) == 3);
}

}  // namespace
}  // namespace atl::plan
