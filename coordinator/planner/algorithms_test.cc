// The parts of the planner one by one, against what the papers publish.

#include <algorithm>
#include <catch2/catch.hpp>
#include <numeric>

#include "common/rng.h"
#include "coordinator/planner/cluster/catalogue.h"
#include "coordinator/planner/cluster/cluster.h"
#include "coordinator/planner/groups/balance.h"
#include "coordinator/planner/groups/grouping.h"
#include "coordinator/planner/testing/models.h"

namespace atl::plan {
namespace {

TEST_CASE("Models in the catalogue have the sizes that their papers give") {
  const auto millions = [](const char* name) {
    const auto model = FindModel(name);
    REQUIRE(model.ok());
    return static_cast<double>(model->parameters()) / 1e6;
  };
  CHECK(millions("gpt2") == Approx(124.4).epsilon(0.005));
  CHECK(millions("gpt2-xl") == Approx(1558).epsilon(0.005));
  CHECK(millions("gpt3-175b") == Approx(175'000).epsilon(0.01));
  CHECK(millions("llama-1b") == Approx(1236).epsilon(0.01));
  CHECK(millions("llama-7b") == Approx(6738).epsilon(0.005));
  CHECK(millions("llama-8b") == Approx(8030).epsilon(0.005));
  CHECK(millions("llama-13b") == Approx(13'016).epsilon(0.005));
  CHECK(millions("llama-70b") == Approx(68'977).epsilon(0.005));
  CHECK(millions("bert-base") == Approx(109).epsilon(0.02));
  CHECK(millions("bert-large") == Approx(335).epsilon(0.02));
  CHECK(millions("resnet50") == Approx(25.56).epsilon(0.005));
  CHECK(millions("resnet101") == Approx(44.55).epsilon(0.005));
  CHECK(millions("efficientnet-b0") == Approx(5.29).epsilon(0.02));
}

TEST_CASE("ResNet-50 and EfficientNet-B0 cost what is published, 4.1 and 0.39 G multiply-adds") {
  const auto gflops = [](const char* name) {
    double sum = 0;
    const Model model = *FindModel(name);
    for (const Layer& layer : model.layers) sum += layer.forward_flops;
    return sum / 1e9;
  };
  CHECK(gflops("resnet50") == Approx(2 * 4.1).epsilon(0.03));
  CHECK(gflops("efficientnet-b0") == Approx(2 * 0.39).epsilon(0.05));
}

TEST_CASE("types_of_the_catalogue_are_known_by_what_drivers_call_them") {
  const auto chip = [](const char* kind) {
    const auto type = FindDeviceTypeByKind(kind);
    return type ? type->name : "";
  };
  CHECK(chip("NVIDIA A100-SXM4-80GB") == "a100-80");
  CHECK(chip("NVIDIA A10G") == "a10g");
  CHECK(chip("NVIDIA A10") == "a10");
  CHECK(chip("NVIDIA L4") == "l4");
  CHECK(chip("NVIDIA L40S") == "l40s");
  CHECK(chip("Tesla T4") == "t4");
  CHECK(chip("NVIDIA GeForce RTX 4090") == "rtx4090");
  CHECK(chip("NVIDIA RTX A6000") == "a6000");
  CHECK(chip("NVIDIA RTX 6000 Ada Generation") == "rtx6000-ada");
  CHECK(chip("NVIDIA RTX A4000") == "");
  CHECK(chip("NVIDIA GH200 480GB") == "gh200");
}

TEST_CASE("an_unknown_type_is_answered_with_the_one_that_may_be_meant") {
  const auto answer = [](const char* name) {
    return std::string(FindDeviceType(name).status().message());
  };
  CHECK_THAT(answer("a100-80gb"), Catch::Contains("did you mean \"a100-80\""));
  CHECK_THAT(answer("h100-sxm"), Catch::Contains("did you mean \"h100\""));
  CHECK_THAT(answer("mi300x"), Catch::Contains("AMD"));
  CHECK(absl::IsInvalidArgument(FindDeviceType("mi250").status()));
  CHECK(absl::IsNotFound(FindDeviceType("abacus").status()));
}

// AutoHet, section V: with TP 2, each pair of H800 is a group and two pairs of A100 are another.
TEST_CASE("AutoHet: 4 A100 + 2 H800 make a group of two A100 pairs and one of the H800 pair") {
  const std::vector<EntityClass> pairs = {{2, 160, 2}, {4, 160, 1}};  // powers 1 : 2 per device
  const auto choice = GroupByCounts(pairs, 2, 16, 107);
  REQUIRE(choice.has_value());
  CHECK(choice->groups == std::vector<Composition>{{0, 1}, {2, 0}});
}

TEST_CASE("AutoHet: 1 A100 + 4 H20 make {A100, H20} and {3 H20}") {
  const std::vector<EntityClass> devices = {{312, 80, 1}, {148, 100, 4}};
  const auto choice = GroupByCounts(devices, 2, 32, 107);
  REQUIRE(choice.has_value());
  CHECK(choice->groups == std::vector<Composition>{{0, 3}, {1, 1}});
}

// All ways to assign a few entities to groups, for comparison.
double BruteForce(const std::vector<EntityClass>& classes, std::vector<Composition>& groups,
                  size_t t, int left, size_t g, double k, int64_t min_bytes) {
  if (t == classes.size()) {
    double weakest = 1e300;
    for (const Composition& group : groups) {
      int64_t bytes = 0;
      for (size_t u = 0; u < group.size(); ++u) bytes += group[u] * classes[u].memory_bytes;
      if (bytes < min_bytes) return 0;
      weakest = std::min(weakest, EffectivePower(classes, group, k));
    }
    return weakest;
  }
  if (g == groups.size()) {
    const int next = t + 1 < classes.size() ? classes[t + 1].count : 0;
    return BruteForce(classes, groups, t + 1, next, 0, k, min_bytes);
  }
  double best = 0;
  for (int n = 0; n <= left; ++n) {
    groups[g][t] = n;
    best = std::max(best, BruteForce(classes, groups, t, left - n, g + 1, k, min_bytes));
  }
  groups[g][t] = 0;
  return best;
}

TEST_CASE("Grouping by counts finds the best weakest group there is") {
  const uint64_t seed = GENERATE(range(0, 60));
  INFO("seed " << seed);
  Rng rng(seed);
  std::vector<EntityClass> classes;
  for (uint64_t t = 0; t < 1 + rng.Below(3); ++t) {
    classes.push_back({1 + 9 * rng.Uniform(), 10 + static_cast<int64_t>(rng.Below(50)),
                       1 + static_cast<int>(rng.Below(4))});
  }
  const int d = 1 + static_cast<int>(rng.Below(3));
  const double k = 1 + static_cast<double>(rng.Below(30));
  const auto min_bytes = static_cast<int64_t>(rng.Below(100));
  std::vector<Composition> groups(d, Composition(classes.size(), 0));
  const double best = BruteForce(classes, groups, 0, classes[0].count, 0, k, min_bytes);
  const auto choice = GroupByCounts(classes, d, k, min_bytes);
  CHECK(choice.has_value() == (best > 0));
  if (!choice.has_value()) return;
  CHECK(choice->weakest <= best * (1 + 1e-9));
  CHECK(choice->weakest >= best * 0.998);  // ten halvings of the interval
  for (size_t t = 0; t < classes.size(); ++t) {
    int used = 0;
    for (const Composition& group : choice->groups) used += group[t];
    CHECK(used <= classes[t].count);
  }
}

TEST_CASE("Any number of unlike classes is grouped, none far weaker than a fair share") {
  const int count = GENERATE(13, 22, 28, 40, 100);
  const int groups = GENERATE(1, 2, 3, 5, 8);
  CAPTURE(count, groups);
  Rng rng(static_cast<uint64_t>(count));
  std::vector<EntityClass> classes;
  double total = 0;
  for (int t = 0; t < count; ++t) {
    classes.push_back({1 + 7 * rng.Uniform(), 10 + static_cast<int64_t>(rng.Below(50)), 1});
    total += classes.back().power;
  }
  const auto choice = GroupByCounts(classes, groups, 1e6, 20);
  REQUIRE(choice.has_value());
  CHECK(static_cast<int>(choice->groups.size()) == groups);
  CHECK(choice->weakest >= 0.7 * total / groups);
  for (size_t t = 0; t < classes.size(); ++t) {
    int used = 0;
    for (const Composition& group : choice->groups) used += group[t];
    CHECK(used <= 1);
  }
}

// Stages of equal layers on devices of given speeds.
std::vector<int> BalanceEqualLayers(const std::vector<double>& speeds, int layers,
                                    int64_t memory_bytes) {
  Model model{"equal", std::vector<Layer>(layers, Layer{"l", 1, 1e12, 1000, 10})};
  const Costs costs(model, {}, {});
  std::vector<StageCosts> stage_costs;
  for (const double speed : speeds) {
    stage_costs.push_back(costs.For({"x", speed * 1e12, 1e15, memory_bytes, 1e9}, 1, 1));
  }
  std::vector<StageSlot> slots;
  for (size_t s = 0; s < speeds.size(); ++s) {
    slots.push_back({&stage_costs[s], memory_bytes, static_cast<int>(speeds.size() - s)});
  }
  const auto cuts = BalanceLayers(slots);
  if (!cuts.ok()) return {};
  std::vector<int> counts;
  for (size_t s = 0; s + 1 < cuts->size(); ++s) counts.push_back((*cuts)[s + 1] - (*cuts)[s]);
  return counts;
}

TEST_CASE("AutoHet's toy: 2 A100 + 2 H800 of twice the speed get layers 1:1:2:2") {
  CHECK(BalanceEqualLayers({1, 1, 2, 2}, 24, 1 << 30) == std::vector<int>{4, 4, 8, 8});
}

TEST_CASE("Memory limits a stage: the fast one cannot take more than fits") {
  // A layer takes 18 + 1000 bytes per micro-batch in flight: two at the first stage, one at the
  // last.
  CHECK(BalanceEqualLayers({1, 9}, 10, 1 << 30) == std::vector<int>{1, 9});
  CHECK(BalanceEqualLayers({1, 9}, 10, 8 * 1018) == std::vector<int>{2, 8});
  CHECK(BalanceEqualLayers({1, 9}, 10, 6 * 1018).empty());  // 3 and 6 layers at most
  CHECK(BalanceEqualLayers({1, 1}, 10, 1018).empty());
}

Cluster TwoSites() {
  Cluster cluster;
  cluster.types = {*FindDeviceType("a100-80"), *FindDeviceType("h20"), *FindDeviceType("h100")};
  for (int d = 0; d < 8; ++d) {
    const bool far = d >= 4;
    cluster.devices.push_back(
        {"d" + std::to_string(d), far ? "n1" : "n0", far ? "b" : "a", d == 3 ? 1 : (far ? 2 : 0)});
  }
  cluster.site_to_site[{"a", "b"}] = {20e-3, 1e9};
  cluster.site_to_site[{"b", "a"}] = {20e-3, 1e9};
  return cluster;
}

TEST_CASE("Devices group by network first, by speed and memory second") {
  const Grouping grouping = GroupDevices(TwoSites(), {});
  CHECK(grouping.sites == std::vector<std::vector<int>>{{0, 1, 2, 3}, {4, 5, 6, 7}});
  CHECK(grouping.classes[0] == std::vector<std::vector<int>>{{0, 1, 2}, {3}});
  CHECK(grouping.classes[1] == std::vector<std::vector<int>>{{4, 5, 6, 7}});
}

TEST_CASE("A slow direction counts: the distance is the larger of both") {
  Cluster cluster = TwoSites();
  cluster.measured[{2, 3}] = {1.0, 1e6};
  const Grouping grouping = GroupDevices(cluster, {});
  for (const std::vector<int>& site : grouping.sites) {
    const bool with_2 = std::count(site.begin(), site.end(), 2) > 0;
    const bool with_3 = std::count(site.begin(), site.end(), 3) > 0;
    CHECK((!with_2 || !with_3 || site.size() > 2));
  }
}

TEST_CASE("Descriptions that cannot be are refused by name") {
  Cluster cluster = TwoSites();
  cluster.devices[1].id = "d0";
  CHECK_THAT(std::string(Validate(cluster).message()), Catch::Contains("\"d0\" appears twice"));
  cluster = TwoSites();
  cluster.site_to_site[{"a", "b"}].bytes_per_s = 0;
  CHECK_THAT(std::string(Validate(cluster).message()), Catch::Contains("a -> b"));
}

}  // namespace
}  // namespace atl::plan
