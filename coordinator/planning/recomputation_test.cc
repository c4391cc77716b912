// Plans whose stages recompute blocks because memory is short.

#include <algorithm>
#include <catch2/catch.hpp>

#include "coordinator/planning/auxiliary_memory.h"
#include "coordinator/planning/plan_changes.h"
#include "coordinator/planning/plan_memory.h"
#include "coordinator/planning/predicted_step.h"
#include "coordinator/planning/testing/planning_fixture.h"

namespace atl {
namespace {

// Two devices with so much memory besides the host's copies of the model, a pipeline of two stages
// of three blocks, whose activations weigh more than their parameters.
PlanRequest TwoStages(int64_t memory, Recompute recompute = Recompute::kAuto) {
  PlanRequest request = MakePlanRequest(6, 8);
  request.spec.layout.stages = 2;
  request.spec.layout.tensor_parallel = 1;
  request.spec.layout.recompute = recompute;
  request.spec.inner.micro_batch_sequences = 1;
  request.members = {Worker("w1", 2, memory + LeastOwnerBytes(request) / 2)};
  for (int d = 0; d < 2; ++d) {
    DeviceProfile profile = Measured(absl::StrCat("w1/", d), 1);
    for (LayerCost& cost : profile.layers) {
      const int layer = cost.kind == LayerKind::kEmbedding ? 0
                        : cost.kind == LayerKind::kBlock   ? 1
                                                           : 7;
      cost.parameter_bytes = 16 * request.facts.layers[layer].elements;
      if (cost.kind == LayerKind::kBlock) cost.stash_bytes *= 8;
      cost.backward_stash_bytes = cost.stash_bytes / 4;
    }
    request.members[0].profiles.push_back(std::move(profile));
  }
  return request;
}

bool FitsAll(const PlanRequest& request, const IslandPlan& plan) {
  return std::all_of(plan.programs.begin(), plan.programs.end(), [&](const PlanProgram& program) {
    return PredictProgramMemory(request, plan, program)->lacks_bytes() <= 0;
  });
}

TEST_CASE("a plan recomputes nothing where memory suffices") {
  const IslandPlan plan = Planned(TwoStages(kGiB));
  CHECK_FALSE(Recomputes(plan));
  CHECK(plan == Planned(TwoStages(kGiB, Recompute::kNone)));
}

TEST_CASE("stages that lack memory recompute as few of their blocks as they have to") {
  const int64_t ample = MostMemory(Planned(TwoStages(kGiB)));
  const int64_t least = MostMemory(Planned(TwoStages(kGiB, Recompute::kAll)));
  REQUIRE(least < ample);
  int partly = 0, faster = 0, alone = 0;
  for (int64_t memory = ample + ample / 24; memory > least / 2; memory -= ample / 24) {
    CAPTURE(memory, ample, least);
    const PlanRequest request = TwoStages(memory);
    const auto plan = PlanIsland(request);
    const auto without = PlanIsland(TwoStages(memory, Recompute::kNone));
    if (!plan.ok()) {
      CHECK_FALSE(without.ok());
      continue;
    }
    CHECK(FitsAll(request, *plan));
    if (!Recomputes(*plan)) {
      REQUIRE(without.ok());
      CHECK(plan->step_ns <= without->step_ns);
      continue;
    }
    CAPTURE(plan->reason);
    CHECK_THAT(plan->reason, Catch::Contains(" blocks (w1/") && Catch::Contains(" without)"));
    if (without.ok()) {
      ++faster;
      CHECK(plan->step_ns < without->step_ns);
      CHECK_THAT(plan->reason, Catch::Contains("; without recomputation "));
    } else {
      ++alone;
      CHECK_THAT(plan->reason, Catch::Contains("; nothing fits without recomputation"));
    }
    for (size_t s = 0; s < 2; ++s) {
      IslandPlan less = *plan;
      PlanStage& stage = less.replicas[0].stages[s];
      if (stage.recomputed_layers.empty()) continue;
      const auto of = absl::StrCat("stage ", s, " recomputes ", stage.recomputed_layers.size(),
                                   " of ", stage.layers - 1, " blocks");
      CHECK_THAT(plan->reason, Catch::Contains(of));
      partly += static_cast<int>(stage.recomputed_layers.size()) < stage.layers - 1 ? 1 : 0;
      stage.recomputed_layers.pop_back();
      CHECK_FALSE(FitsAll(request, less));
    }
  }
  CHECK(partly > 0);
  CHECK(faster + alone > 0);
  CHECK(alone > 0);
}

TEST_CASE("the prediction has the time of what is recomputed") {
  const int64_t ample = MostMemory(Planned(TwoStages(kGiB)));
  for (int64_t memory = ample; memory > 0; memory -= ample / 24) {
    const PlanRequest request = TwoStages(memory);
    const auto plan = PlanIsland(request);
    if (!plan.ok() || !Recomputes(*plan)) continue;
    CAPTURE(plan->reason);
    CHECK(EstimateStepNs(request, *plan) == Approx(plan->step_ns).epsilon(0.05));
    IslandPlan without = *plan;
    for (PlanStage& stage : without.replicas[0].stages) stage.recomputed_layers.clear();
    CHECK(EstimateStepNs(request, without) < EstimateStepNs(request, *plan));
    return;
  }
  FAIL("nothing was recomputed");
}

TEST_CASE("replicas that are cut unlike recompute each what it lacks") {
  PlanRequest request = TwoStages(kGiB);
  request.spec.layout.stages = 1;
  request.spec.layout.replicas = 2;
  request.spec.inner.micro_batch_sequences = 4;
  const int64_t ample = MostMemory(Planned(request));
  request.members[0].devices[1].memory_bytes = ample * 3 / 4 + LeastOwnerBytes(request) / 2;
  const IslandPlan plan = Planned(request);
  CAPTURE(plan.reason);
  CHECK(FitsAll(request, plan));
  for (const PlanReplica& replica : plan.replicas) {
    const PlanStage& stage = replica.stages[0];
    CHECK(stage.recomputed_layers.empty() == (stage.devices[0] == "w1/0"));
  }
  CHECK_THAT(plan.reason, Catch::Contains("'s stage 0 recomputes "));
}

TEST_CASE("recomputation keeps only the blocks' inputs, and costs another forward") {
  PlanRequest request = MakePlanRequest(6, 8, {MeasuredWorker("w1", 1, 2)});
  request.spec.layout.stages = 2;
  request.spec.inner.micro_batch_sequences = 1;
  const IslandPlan kept = Planned(request);
  request.spec.layout.recompute = Recompute::kAll;
  const IslandPlan again = Planned(request);
  CHECK(kept.replicas[0].stages[0].recomputed_layers.empty());
  std::vector<int32_t> recomputed;
  for (const PlanStage& stage : again.replicas[0].stages) {
    recomputed.insert(recomputed.end(), stage.recomputed_layers.begin(),
                      stage.recomputed_layers.end());
  }
  CHECK(recomputed == std::vector<int32_t>{1, 2, 3, 4, 5, 6});
  CHECK(again.step_ns > kept.step_ns);
  CHECK(again.programs[0].memory_peak_bytes < kept.programs[0].memory_peak_bytes);
}

}  // namespace
}  // namespace atl
