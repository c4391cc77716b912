// Devices of different speed that share layers.

#include <catch2/catch.hpp>
#include <string>
#include <vector>

#include "coordinator/planning/plan_memory.h"
#include "coordinator/planning/predicted_step.h"
#include "coordinator/planning/testing/planning_fixture.h"

namespace atl {
namespace {

// A worker whose devices take so long for a block, each by itself. Shared by two, all take as long
// as the slowest for F and B: they were measured together.
PlanMember Unlike(const std::string& name, const std::vector<double>& block_ms) {
  PlanMember member = Worker(name, static_cast<int>(block_ms.size()));
  double slowest = 0;
  for (const double ms : block_ms) slowest = std::max(slowest, ms);
  for (size_t d = 0; d < block_ms.size(); ++d) {
    const std::string device = absl::StrCat(name, "/", d);
    DeviceProfile profile = Measured(device, block_ms[d]);
    for (LayerCost cost : Measured(device, slowest / 2).layers) {
      cost.tensor_parallel = 2;
      cost.weight_gradient_ns = static_cast<int64_t>(static_cast<double>(cost.weight_gradient_ns) *
                                                     block_ms[d] / slowest);
      cost.stash_bytes = cost.stash_bytes * 3 / 5;  // a fifth is on both
      profile.layers.push_back(cost);
    }
    member.profiles.push_back(std::move(profile));
  }
  return member;
}

PlanRequest Sharing(const std::vector<double>& block_ms) {
  PlanRequest request = MakePlanRequest(6, 8);
  request.spec.layout.tensor_parallel = 2;
  request.spec.layout.stages = 1;
  request.spec.layout.replicas = 1;
  request.members = {Unlike("w1", block_ms)};
  return request;
}

IslandPlan Evenly(PlanRequest request) {
  request.spec.layout.tensor_split_ratios = {1, 1};
  return Planned(request);
}

using Ratios = std::vector<int32_t>;
using Names = std::vector<std::string>;

TEST_CASE("devices of different speed share layers by it, where that is quicker") {
  const PlanRequest request = Sharing({1, 3});
  const IslandPlan plan = Planned(request);
  CAPTURE(plan.reason);
  CHECK(plan.tensor_split_ratios == Ratios{1, 3});
  CHECK(plan.replicas[0].stages[0].devices == Names{"w1/1", "w1/0"});
  const IslandPlan even = Evenly(request);
  CHECK(plan.step_ns < 0.6 * static_cast<double>(even.step_ns));
  CHECK_THAT(plan.reason, Catch::Contains("layers shared 1:3 by measured speed: "));
  CHECK(EstimateStepNs(request, plan) == Approx(plan.step_ns).epsilon(0.05));
  CHECK(EstimateStepNs(request, even) == Approx(even.step_ns).epsilon(0.05));
}

TEST_CASE("devices that are alike, or too little different for whole heads, share evenly") {
  for (const double ms : {1.0, 1.3}) {
    const IslandPlan plan = Planned(Sharing({1, ms}));
    CAPTURE(ms, plan.reason);
    CHECK(plan.tensor_split_ratios.empty());
    CHECK_THAT(plan.reason, !Catch::Contains("shared"));
  }
}

TEST_CASE("what a job says of shares is done, the faster device gets the larger one") {
  PlanRequest request = Sharing({3, 1});
  request.spec.layout.tensor_split_ratios = {3, 1};
  const IslandPlan plan = Planned(request);
  CHECK(plan.tensor_split_ratios == Ratios{3, 1});
  CHECK(plan.replicas[0].stages[0].devices == Names{"w1/1", "w1/0"});
  CHECK_THAT(plan.reason, Catch::Contains("layers shared 3:1, as the job requests"));
  // Slower than need be: alike devices would share evenly.
  PlanRequest alike = Sharing({1, 1});
  const int64_t even_ns = Planned(alike).step_ns;
  alike.spec.layout.tensor_split_ratios = {3, 1};
  CHECK(Planned(alike).step_ns > 1.3 * static_cast<double>(even_ns));
  // The heads of a model that the job file names by its config.json are known here only.
  alike.spec.layout.tensor_split_ratios = {2, 1};
  CHECK_THAT(Refusal(alike), Catch::StartsWith("layout.tensor_split_ratios = [2, 1]: the model's 4 "
                                               "key-value heads cannot be cut so"));
}

TEST_CASE("all replicas and stages are cut at the same points") {
  PlanRequest request = Sharing({1, 3});
  request.members.push_back(Unlike("w2", {3, 1}));
  Link(request, "w1", "w2", 0.1, 1e9);
  for (const int stages : {1, 2}) {
    request.spec.layout.stages = stages;
    request.spec.layout.replicas = 3 - stages;
    const IslandPlan plan = Planned(request);
    CAPTURE(stages, plan.reason);
    CHECK(plan.tensor_split_ratios == Ratios{1, 3});
    for (const PlanReplica& replica : plan.replicas) {
      for (const PlanStage& stage : replica.stages) {
        CHECK((stage.devices == Names{"w1/1", "w1/0"} || stage.devices == Names{"w2/0", "w2/1"}));
      }
    }
  }
}

TEST_CASE("an uneven share's memory lies on a line from an even one to the whole") {
  const PlanRequest request = Sharing({1, 3});
  const IslandPlan plan = Planned(request);
  PlanRequest even_request = request;
  const IslandPlan even = Evenly(request);
  const auto memory = [](const IslandPlan& of, const std::string& device) {
    for (const PlanProgram& program : of.programs) {
      if (program.device == device) return static_cast<double>(program.memory_peak_bytes);
    }
    return 0.0;
  };
  const double half = memory(even, "w1/0");
  CHECK(memory(even, "w1/1") == half);
  CHECK(memory(plan, "w1/0") > half);
  CHECK(memory(plan, "w1/1") < half);
  CHECK(memory(plan, "w1/0") + memory(plan, "w1/1") == Approx(2 * half).epsilon(0.01));
}

}  // namespace
}  // namespace atl
