#include "coordinator/planner/planner.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <map>
#include <set>

#include "common/rng.h"
#include "coordinator/planner/testing/clusters.h"

namespace atl::plan {
namespace {

const Options kQuick{.simulate = 3, .restarts = 8, .improvements = 4};

// Every layer once per replica, every device once, all samples, memory kept.
void CheckPlan(const Cluster& cluster, const Costs& costs, const Job& job, const Plan& plan) {
  std::set<int> used;
  int micro_batches = 0;
  const size_t each = plan.layout.shape == Shape::kPlain ? 1 : 2;
  for (const Replica& replica : plan.layout.replicas) {
    int next_layer = 0;
    micro_batches += replica.micro_batches;
    const std::vector<int> stage_entities = MapStagesToEntities(replica);
    for (const int entity : stage_entities) {
      CHECK(static_cast<size_t>(std::count(stage_entities.begin(), stage_entities.end(), entity)) ==
            each);
    }
    for (size_t s = 0; s < replica.stages.size(); ++s) {
      const Stage& stage = replica.stages[s];
      CHECK(stage.first_layer == next_layer);
      CHECK(stage.last_layer > stage.first_layer);
      next_layer = stage.last_layer;
      CHECK(static_cast<int>(stage.devices.size()) <= plan.layout.tensor_parallel);
      const bool first_visit =
          std::find(stage_entities.begin(), stage_entities.end(), stage_entities[s]) ==
          stage_entities.begin() + static_cast<std::ptrdiff_t>(s);
      for (const int d : stage.devices) {
        CHECK(used.insert(d).second == first_visit);
        CHECK(cluster.devices[d].node == cluster.devices[stage.devices[0]].node);
        CHECK(cluster.devices[d].type == cluster.devices[stage.devices[0]].type);
      }
    }
    CHECK(next_layer == static_cast<int>(costs.model().layers.size()));
  }
  CHECK(DegreesAgree(costs.model(), plan.layout));
  CHECK(micro_batches * plan.layout.micro_batch >= job.global_batch);
  for (const ReplicaOutcome& kind : plan.outcome.kinds) {
    CHECK(kind.found.result.verdict == sim::Verdict::kFits);
    for (size_t s = 0; s < kind.state_bytes.size(); ++s) {
      CHECK(kind.state_bytes[s] + kind.found.result.devices[s].peak_bytes <= kind.memory_bytes[s]);
    }
  }
  CHECK(plan.outcome.step_s >= plan.outcome.bound_s);
  CHECK(plan.outcome.step_s >= plan.cluster_bound_s);
  CHECK_FALSE(plan.reason.empty());
}

Plan CheckedPlan(const Cluster& cluster, const Costs& costs, const Job& job,
                 const Options& options) {
  const auto plan = PlanJob(cluster, costs, job, options);
  INFO(plan.status());
  REQUIRE(plan.ok());
  INFO(Describe(plan->layout));
  CheckPlan(cluster, costs, job, *plan);
  return *plan;
}

TEST_CASE("what runs is never better than the plan that replaces it") {
  const Cluster cluster = MakeCluster({{"a100-80", 8, "a"}, {"h20", 4, "a"}, {"v100", 4, "b"}});
  const Costs costs = MakeCosts("gpt3-1.3b");
  const Job job{.global_batch = 48, .micro_batches = {1, 2}};
  Options options{.simulate = 1, .restarts = 1, .improvements = 0, .two_stages_per_device = false};
  const double poor_s = CheckedPlan(cluster, costs, job, options).outcome.step_s;
  const Plan ran = CheckedPlan(cluster, costs, job, {});
  REQUIRE(ran.outcome.step_s < 0.999 * poor_s);
  options.starts = {ran.layout};
  const Plan plan = CheckedPlan(cluster, costs, job, options);
  CHECK(plan.outcome.step_s <= ran.outcome.step_s * (1 + 1e-9));
  // Another job does not allow it: another batch, or fewer stages than it has.
  const Job other{.global_batch = 40, .micro_batches = {1, 2}};
  CheckedPlan(cluster, costs, other, options);
  options.starts[0].replicas[0].stages.pop_back();
  CheckedPlan(cluster, costs, job, options);
}

TEST_CASE("Any mix of devices gets a valid plan, the same one with any number of threads") {
  const uint64_t seed = GENERATE(range(0, 12));
  INFO("seed " << seed);
  Rng rng(seed);
  Cluster cluster;
  const char* types[] = {"a100-80", "h800", "h20", "rtx4090", "v100"};
  for (uint64_t t = 0; t < 1 + rng.Below(3); ++t) {
    AddDevices(cluster, types[(seed + t) % 5], 2 + static_cast<int>(rng.Below(7)),
               rng.Chance(0.5) ? "a" : "b");
  }
  const Costs costs = MakeCosts("gpt3-1.3b");
  const Job job{.global_batch = 32, .micro_batches = {1, 2}};
  const Plan plan = CheckedPlan(cluster, costs, job, kQuick);
  ThreadPool pool(3);
  Options by_three = kQuick;
  by_three.pool = &pool;
  const auto again = PlanJob(cluster, costs, job, by_three);
  CHECK(again->outcome.step_s == plan.outcome.step_s);
  CHECK(again->simulated == plan.simulated);
  CHECK(again->reason == plan.reason);
}

TEST_CASE("neither_the_order_of_devices_and_types_nor_the_seed_changes_a_plan") {
  const uint64_t seed = GENERATE(range(0, 6));
  INFO("seed " << seed);
  const char* types[] = {"a100-80", "h800", "h20", "rtx4090", "v100"};
  Cluster cluster;
  Rng rng(seed);
  for (uint64_t t = 0; t < 3; ++t) {
    AddDevices(cluster, types[(seed + t) % 5], 2 + static_cast<int>(rng.Below(7)),
               rng.Chance(0.5) ? "a" : "b");
  }
  Cluster turned = cluster;
  std::reverse(turned.types.begin(), turned.types.end());
  std::reverse(turned.devices.begin(), turned.devices.end());
  for (Device& device : turned.devices) device.type = 2 - device.type;
  const Costs costs = MakeCosts("gpt3-1.3b");
  const Job job{.global_batch = 32, .micro_batches = {1, 2}};
  const auto ids = [](const Cluster& of, const Plan& plan) {
    std::vector<std::string> names;
    for (const Replica& replica : plan.layout.replicas) {
      for (const Stage& stage : replica.stages) {
        for (const int d : stage.devices) names.push_back(of.devices[d].id);
      }
    }
    return names;
  };
  const auto plan = PlanJob(cluster, costs, job, kQuick);
  REQUIRE(plan.ok());
  const auto other = PlanJob(turned, costs, job, kQuick);
  REQUIRE(other.ok());
  CHECK(other->outcome.step_s == plan->outcome.step_s);
  CHECK(other->reason == plan->reason);
  CHECK(ids(turned, *other) == ids(cluster, *plan));
  Options seeded = kQuick;
  seeded.seed = 7;
  CHECK(PlanJob(cluster, costs, job, seeded)->outcome.step_s ==
        Approx(plan->outcome.step_s).epsilon(0.003));
}

std::set<size_t> ListTensorDegrees(const Layout& layout) {
  std::set<size_t> degrees;
  for (const Replica& replica : layout.replicas) {
    for (const Stage& stage : replica.stages) degrees.insert(stage.devices.size());
  }
  return degrees;
}

// Few micro-batches, so that few stages are better; and machines of one device.
TEST_CASE("stages_of_machines_of_unlike_size_have_tensor_parallel_sets_of_unlike_size") {
  Cluster cluster = MakeCluster({{"a100-80", 4, "a"}});
  cluster.types.push_back(*FindDeviceType("h800"));
  for (const char* node : {"b0", "b1"}) cluster.devices.push_back({node, node, "a", 1});
  for (const bool tied : {false, true}) {
    Model model = *FindModel("llama-7b");
    model.tied_head = tied;
    const Costs costs(model, {}, {});
    Job job{.global_batch = 2, .micro_batches = {1}};
    std::map<int, double> step_s;  // by degree
    for (const int degree : {1, 4}) {
      job.tensor_parallel = {degree};
      const auto plan = PlanJob(cluster, costs, job, kQuick);
      if (plan.ok()) step_s[degree] = plan->outcome.step_s;
    }
    job.tensor_parallel = {1, 2, 4};
    const Plan plan = CheckedPlan(cluster, costs, job, kQuick);
    CHECK(ListTensorDegrees(plan.layout) == std::set<size_t>{1, 4});
    CHECK_THAT(Describe(plan.layout), Catch::Contains("TP 1 to 4"));
    for (const auto& [degree, even_s] : step_s) CHECK(plan.outcome.step_s < 0.95 * even_s);
    const std::vector<Stage>& stages = plan.layout.replicas[0].stages;
    if (tied) CHECK(stages.front().devices.size() == stages.back().devices.size());
  }
}

TEST_CASE("Slow links between sites: activations cross rather than gradients") {
  Cluster cluster = MakeCluster({{"a100-80", 8, "a"}, {"a100-80", 8, "b"}});
  cluster.wan_link = {20e-3, 1.25e9};
  const Costs costs = MakeCosts("llama-7b");
  const Job job{.global_batch = 128, .micro_batches = {1, 2}};
  const Plan plan = CheckedPlan(cluster, costs, job, kQuick);
  for (const Replica& replica : plan.layout.replicas) {
    std::set<std::string> sites;
    for (const Stage& stage : replica.stages) sites.insert(cluster.devices[stage.devices[0]].site);
    CHECK(sites.size() == 2);
  }
}

// Six sites in a chain of fast links, all others slow, named so that no order of names follows the
// chain.
TEST_CASE("Many sites form a pipeline along their fast links") {
  Cluster cluster;
  const std::vector<std::string> chain = {"d", "a", "f", "b", "e", "c"};
  for (const std::string& site : chain) AddDevices(cluster, "a100-80", 1, site);
  cluster.wan_link = {20e-3, 10e6};
  for (size_t i = 0; i + 1 < chain.size(); ++i) {
    cluster.site_to_site[{chain[i], chain[i + 1]}] = {1e-3, 10e9};
    cluster.site_to_site[{chain[i + 1], chain[i]}] = {1e-3, 10e9};
  }
  const Costs costs = MakeCosts("gpt3-22b");  // no fewer than five devices hold it
  const Job job{.global_batch = 64, .micro_batches = {1}, .tensor_parallel = {1}};
  const Plan plan = CheckedPlan(cluster, costs, job, kQuick);
  for (const Replica& replica : plan.layout.replicas) {
    for (size_t s = 0; s + 1 < replica.stages.size(); ++s) {
      CHECK(cluster.LinkBetween(replica.stages[s].devices[0], replica.stages[s + 1].devices[0])
                .bytes_per_s == 10e9);
    }
  }
}

// Unlike devices, each a node and a type of its own, distributed over sites with unlike links.
Cluster UnlikeDevices(int count, int sites, uint64_t seed) {
  Rng rng(seed);
  Cluster cluster;
  for (int d = 0; d < count; ++d) {
    DeviceType type = *FindDeviceType("rtx3090");
    const double speed = 1 + 7 * rng.Uniform();
    type.name = "type" + std::to_string(d);
    type.flops_per_s = 20e12 * speed;
    type.memory_bytes = static_cast<int64_t>(8 + rng.Below(41)) << 30;
    cluster.types.push_back(type);
    const std::string id = std::to_string(d);
    cluster.devices.push_back({"d" + id, "n" + id, "site" + std::to_string(d % sites), d});
  }
  cluster.site_link = {0.2e-3, 125e6};
  for (int a = 0; a < sites; ++a) {
    for (int b = 0; b < a; ++b) {
      const Link link = {2e-3 + 28e-3 * rng.Uniform(), 12.5e6 * (1 + 9 * rng.Uniform())};
      const std::string from = "site" + std::to_string(a), to = "site" + std::to_string(b);
      cluster.site_to_site[{from, to}] = cluster.site_to_site[{to, from}] = link;
    }
  }
  return cluster;
}

TEST_CASE("28 unlike devices get a plan about as fast as any of a subset of them") {
  const Cluster cluster = UnlikeDevices(28, 6, 1);
  const Costs costs = MakeCosts("gpt2-large");
  const Job job{.global_batch = 32, .micro_batches = {1, 2}, .tensor_parallel = {1}};
  const Plan plan = CheckedPlan(cluster, costs, job, {});
  std::vector<double> speeds;
  for (const DeviceType& type : cluster.types) speeds.push_back(-type.flops_per_s);
  std::sort(speeds.begin(), speeds.end());
  for (const size_t fastest : {6, 12, 20}) {
    const Cluster part = WithDevices(cluster, [&](const Device& device) {
      return -cluster.types[device.type].flops_per_s <= speeds[fastest - 1];
    });
    REQUIRE(part.devices.size() == fastest);
    const auto other = PlanJob(part, costs, job, {});
    INFO("the fastest " << fastest);
    REQUIRE(other.ok());
    CHECK(plan.outcome.step_s <= 1.06 * other->outcome.step_s);
  }
}

TEST_CASE("a plan is no slower than one whose choices are fewer") {
  const auto [model, devices, batch] =
      GENERATE(std::tuple("gpt2-large", 8, 32), std::tuple("gpt2", 4, 16));
  INFO(model << " on " << devices);
  const Cluster cluster = MakeCluster({{"a100-80", devices, ""}});
  const Costs costs = MakeCosts(model);
  const auto step_s = [&](std::vector<int> micro_batches, std::vector<int> tensor_parallel) {
    const Job job{.global_batch = batch,
                  .micro_batches = std::move(micro_batches),
                  .tensor_parallel = std::move(tensor_parallel)};
    const auto plan = PlanJob(cluster, costs, job, {});
    REQUIRE(plan.ok());
    return plan->outcome.step_s;
  };
  const double free_s = step_s({}, {});
  for (const int few : {1, 2, 4}) {
    INFO(few);
    CHECK(free_s <= 1.005 * step_s({}, {few}));
    CHECK(free_s <= 1.005 * step_s({few}, {}));
  }
}

TEST_CASE("Fixing the shape of the free plan changes nothing") {
  const uint64_t seed = GENERATE(range(1, 5));
  CAPTURE(seed);
  Cluster cluster = UnlikeDevices(6 + 2 * static_cast<int>(seed), 3, seed);
  if (seed % 2 == 0) {
    AddDevices(cluster, "a100-80", 6, "site0");
    AddDevices(cluster, "h20", 5, "site1");
  }
  const Costs costs = MakeCosts("gpt2-large");
  Job job{.global_batch = 32, .micro_batches = {1, 2}, .tensor_parallel = {1, 2}};
  const auto free = PlanJob(cluster, costs, job, kQuick);
  INFO(free.status().ToString());
  REQUIRE(free.ok());
  const size_t stages = free->layout.replicas[0].stages.size();
  const bool alike =
      std::all_of(free->layout.replicas.begin(), free->layout.replicas.end(),
                  [&](const Replica& replica) { return replica.stages.size() == stages; });
  job.fixed.replicas = static_cast<int>(free->layout.replicas.size());
  if (alike) {
    job.fixed.stages = static_cast<int>(stages) / (free->layout.shape == Shape::kPlain ? 1 : 2);
  }
  job.tensor_parallel = {free->layout.tensor_parallel};
  const auto fixed = PlanJob(cluster, costs, job, kQuick);
  INFO(fixed.status().ToString());
  REQUIRE(fixed.ok());
  CHECK(Satisfies(job.fixed, fixed->layout));
  INFO(Describe(free->layout) << " | " << Describe(fixed->layout));
  CHECK(fixed->outcome.step_s <= free->outcome.step_s * (1 + 1e-9));
}

TEST_CASE("What the job fixes is kept, or refused by its key") {
  Cluster cluster = MakeCluster({{"a100-80", 4, "a"}, {"h20", 4, "b"}});
  const Costs costs = MakeCosts("gpt2");
  Job job{.global_batch = 16, .micro_batches = {1}, .tensor_parallel = {1}};
  job.fixed = {.stages = 3, .replicas = 2, .schedule = "1f1b"};
  const Plan plan = CheckedPlan(cluster, costs, job, kQuick);
  CHECK(Satisfies(job.fixed, plan.layout));
  CHECK(plan.layout.schedule == "1f1b");
  CHECK_FALSE(plan.layout.split_backward);
  job.fixed = {.stages = 5, .replicas = 2, .schedule = ""};
  CHECK_THAT(std::string(PlanJob(cluster, costs, job, kQuick).status().message()),
             Catch::Contains("layout.stages = 5, layout.replicas = 2 take 10 devices"));
  job.fixed = {.stages = 0, .replicas = 0, .schedule = "fastest"};
  CHECK_THAT(std::string(PlanJob(cluster, costs, job, kQuick).status().message()),
             Catch::Contains("layout.schedule = \"fastest\""));
}

TEST_CASE("What cannot fit is refused with what would help") {
  Cluster cluster = MakeCluster({{"p4", 2, "a"}});
  const auto plan = PlanJob(cluster, MakeCosts("llama-70b"), {.global_batch = 8}, kQuick);
  CHECK(plan.status().code() == absl::StatusCode::kResourceExhausted);
  CHECK_THAT(std::string(plan.status().message()),
             Catch::Contains("lacks") && Catch::Contains("more p4 would hold it"));
  // Less state per parameter does not help where frozen weights alone are too much.
  plan::Model frozen = *FindModel("llama-70b");
  for (Layer& layer : frozen.layers) layer.frozen_bytes = 2 * std::exchange(layer.parameters, 1000);
  const absl::Status adapted =
      PlanJob(cluster, Costs(frozen, {}, {}), {.global_batch = 8}, kQuick).status();
  CHECK_THAT(std::string(adapted.message()), Catch::Contains("more p4 would hold it") &&
                                                 !Catch::Contains("of state per parameter"));
  const auto none = PlanJob(cluster, MakeCosts("gpt2"), {.global_batch = 0}, kQuick);
  CHECK_THAT(std::string(none.status().message()), Catch::Contains("global_batch = 0"));
}

TEST_CASE("Measured times replace the roofline, and the plan says where its times are from") {
  Cluster cluster = MakeCluster({{"a100-80", 2, "a"}});
  const Model model = *FindModel("gpt2");
  const Job job{.global_batch = 8, .micro_batches = {2}, .tensor_parallel = {1}};
  const auto roofline = PlanJob(cluster, Costs(model, {}, {}), job, kQuick);
  REQUIRE(roofline.ok());
  CHECK(roofline->times_from == "roofline at 45% of the datasheet");
  ProfileTable profile;
  profile[{"a100-80", 1, 2}].assign(model.layers.size(), {0.01, 0.01, 0.01, 0.001});
  const auto measured = PlanJob(cluster, Costs(model, profile, {}), job, kQuick);
  REQUIRE(measured.ok());
  CHECK(measured->times_from == "measured");
  CHECK(measured->outcome.step_s > 0.03 * 14);  // two devices share 4 * 14 * 30 ms at best
  profile.clear();
  profile[{"a100-80", 1, 1}].assign(model.layers.size(), {0.005, 0.005, 0.005, 0.001});
  const auto between = PlanJob(cluster, Costs(model, profile, {}), job, kQuick);
  CHECK(between->times_from == "interpolated between measured sizes");
  CHECK(between->outcome.step_s == Approx(measured->outcome.step_s));
}

// Four devices that hold little more than their state: plain pipelines have memory for few
// micro-batches at the first stage, a V divides the activations evenly.
TEST_CASE("Where memory is tight a V of two stages per device beats every plain placement") {
  Cluster cluster = MakeCluster({{"a100-80", 8, "a"}});
  const Costs costs = MakeCosts("gpt3-13b");
  const Job job{.global_batch = 32, .micro_batches = {1}, .tensor_parallel = {1}};
  cluster.types[0].memory_bytes = int64_t{36} << 30;
  Options plain = kQuick;
  plain.two_stages_per_device = false;
  const auto without = PlanJob(cluster, costs, job, plain);
  const auto with = PlanJob(cluster, costs, job, kQuick);
  REQUIRE((without.ok() && with.ok()));
  INFO(without->reason << "\n" << with->reason);
  CheckPlan(cluster, costs, job, *with);
  CHECK(with->layout.shape != Shape::kPlain);
  CHECK(with->outcome.step_s < without->outcome.step_s);
  CHECK_THAT(with->reason, Catch::Contains("schedule: "));
}

TEST_CASE("more_rounds_of_improvement_are_never_worse") {
  Cluster cluster;
  cluster.types = {*FindDeviceType("a100-80"), *FindDeviceType("v100"), *FindDeviceType("rtx3090")};
  for (int d = 0; d < 9; ++d) {
    cluster.devices.push_back({absl::StrCat("d", d), absl::StrCat("n", d / 3), "s", d / 3});
  }
  cluster.site_link = {50e-6, 1.25e9};
  const Costs costs = MakeCosts("gpt2-large");
  const Job job{.global_batch = 24};
  double before = INFINITY;
  for (const int rounds : {0, 1, 2, 4}) {
    Options options{.simulate = 2, .restarts = 4, .improvements = 4};
    options.enough = [left = rounds]() mutable { return left-- == 0; };
    const auto plan = PlanJob(cluster, costs, job, options);
    REQUIRE(plan.ok());
    CHECK(plan->rank <= before);
    before = plan->rank;
  }
}

// Moments and master weights are 12 of 18 bytes of a parameter.
TEST_CASE("replicas_that_divide_the_optimizers_state_fit_where_whole_ones_do_not") {
  Cluster cluster = MakeCluster({{"a100-80", 4, "s"}});
  cluster.types[0].memory_bytes = int64_t{20} << 30;
  const Model model = *FindModel("gpt3-1.3b");  // 24 GB of state
  const Job job{.global_batch = 16, .micro_batches = {1}, .tensor_parallel = {1}};
  Job four = job;
  four.fixed.replicas = 4;
  const Costs whole(model, {}, {});
  const Costs divided(model, {}, {.sharded_bytes_per_parameter = 12, .optimizer_copies = 1});
  const Costs twice(model, {}, {.sharded_bytes_per_parameter = 12, .optimizer_copies = 4});
  CHECK_FALSE(PlanJob(cluster, whole, four, {}).ok());
  CHECK_FALSE(PlanJob(cluster, twice, four, {}).ok());
  const auto plan = PlanJob(cluster, divided, four, {});
  INFO(plan.status());
  REQUIRE(plan.ok());
  const double bytes = static_cast<double>(plan->outcome.kinds[0].state_bytes[0]);
  CHECK(bytes == Approx(static_cast<double>(model.parameters()) * (6 + 12.0 / 4)).epsilon(0.01));
}

TEST_CASE("heads_that_do_not_divide_by_a_degree_count_as_they_are_cut") {
  Model model = *FindModel("gpt2");
  const DeviceType type = *FindDeviceType("a100-80");
  const auto seconds = [&](int64_t heads, int degree) {
    model.head_groups = heads;
    for (Layer& layer : model.layers)
      layer.head_share = layer.name.rfind("layer", 0) == 0 ? 0.5 : 0;
    return Costs(model, {}, {}).For(type, degree, 1).TotalSeconds(1, 13);
  };
  CHECK(seconds(3, 2) > 1.1 * seconds(4, 2));  // two heads of three on one of the devices
  CHECK(seconds(3, 3) == Approx(seconds(0, 3)));
}

}  // namespace
}  // namespace atl::plan
