// The planner's choices for memory and for unlike devices train as one device does, in the memory
// that it predicts: blocks recomputed in part, layers shared unevenly.

#include <array>
#include <catch2/catch.hpp>
#include <cmath>
#include <set>

#include "tests/island/planned_fixture.h"

namespace atl::worker {
namespace {

constexpr int kSteps = 8;
constexpr double kLearningRate = 3e-3;
constexpr double kMemoryTolerance = 0.05;

void RequireExact(const EngineJob& job, const IslandPlan& plan) {
  CAPTURE(plan.reason);
  const Layers start = RandomWeights(job.model, 5);
  TestDevice one(job);
  one.Set(start);
  TestIsland island(job, plan, {});
  island.Set(LayerPart::kParameters, start);
  for (int s = 0; s < kSteps; ++s) {
    CAPTURE(s);
    const std::vector<int32_t> tokens =
        RandomTokens(job, job.batch_sequences, 100 + static_cast<uint64_t>(s));
    const auto outcome = island.Step(tokens, kLearningRate);
    REQUIRE(outcome.status().message() == "");
    const double loss = one.Step(tokens, kLearningRate).mean();
    REQUIRE(std::abs(outcome->loss.mean() - loss) < 1e-5 * loss);
  }
  REQUIRE(RelativeDifference(island.Get(LayerPart::kParameters), one.Get(LayerPart::kParameters)) <
          1e-4);
  for (const DeviceMemory& memory : island.engine(0).Memory()) {
    CAPTURE(memory.device, memory.peak_bytes, memory.predicted_bytes);
    const double ratio =
        static_cast<double>(memory.peak_bytes) / static_cast<double>(memory.predicted_bytes);
    CHECK(std::abs(ratio - 1) <= kMemoryTolerance);
  }
}

int64_t MostMemory(const IslandPlan& plan) {
  int64_t most = 0;
  for (const PlanProgram& program : plan.programs) {
    most = std::max(most, program.memory_peak_bytes);
  }
  return most;
}

// Stages that recompute some of their blocks, and not all.
int PartlyRecomputing(const IslandPlan& plan) {
  int stages = 0;
  for (const PlanReplica& replica : plan.replicas) {
    for (const PlanStage& stage : replica.stages) {
      const auto count = static_cast<int32_t>(stage.recomputed_layers.size());
      stages += count > 0 && count < stage.layers - 1 ? 1 : 0;
    }
  }
  return stages;
}

TEST_CASE("stages that recompute as much as memory requires train as one device does") {
  for (const ModelFamily family : {ModelFamily::kGpt2, ModelFamily::kLlama}) {
    const EngineJob job = PlannedJob(family, family == ModelFamily::kGpt2);
    PlanRequest request = MakePlanRequest(job, 2);
    request.spec.layout.stages = 2;
    request.spec.layout.tensor_parallel = 1;
    request.spec.layout.recompute = Recompute::kNone;
    const auto ample = PlanIsland(request);
    REQUIRE(ample.status().message() == "");
    request.spec.layout.recompute = Recompute::kAuto;
    int exact = 0;
    for (int percent = 60; percent > 0 && exact == 0; --percent) {
      const int64_t bytes = MostMemory(*ample) * percent / 100;
      GiveMemory(bytes, request);
      const auto plan = PlanIsland(request);
      if (!plan.ok() || PartlyRecomputing(*plan) == 0) continue;
      for (const PlanProgram& program : plan->programs) {
        CHECK(program.memory_peak_bytes <= bytes);
      }
      RequireExact(job, *plan);
      ++exact;
    }
    REQUIRE(exact > 0);
  }
}

// Four devices of one worker and one of another, as fast as these together; two micro-batches.
TEST_CASE("stages_with_tensor_parallelism_of_their_own_train_as_one_device_does") {
  EngineJob job = PlannedJob(ModelFamily::kLlama, false);
  job.batch_sequences = 4;
  PlanRequest request = MakePlanRequest(job, 5, {1, 4});
  PlanMember& many = request.members[0];
  PlanMember one = many;
  one.member.worker = "w2";
  one.devices = {many.devices.back()};
  one.profiles = {many.profiles.back()};
  one.profiles[0].device = "w2/0";
  many.devices.pop_back();
  many.profiles.pop_back();
  for (LayerCost& cost : one.profiles[0].layers) {
    for (int64_t* ns : {&cost.forward_ns, &cost.input_gradient_ns, &cost.weight_gradient_ns}) {
      *ns /= 4;
    }
  }
  request.members.push_back(one);
  const auto plan = PlanIsland(request);
  REQUIRE(plan.status().message() == "");
  CAPTURE(plan->reason);
  REQUIRE(plan->replicas.size() == 1);
  std::set<size_t> degrees;
  for (const PlanStage& stage : plan->replicas[0].stages) degrees.insert(stage.devices.size());
  REQUIRE(degrees == std::set<size_t>{1, 4});
  RequireExact(job, *plan);
}

// One replica of two stages of half of the layers, in four micro-batches, whose programs are given
// as operations of kind, stage and micro-batch.
std::string PinnedOrder(const EngineJob& job,
                        const std::vector<std::array<int, 3>> (&programs)[2]) {
  const int64_t layers = job.model.layers + 2, first = layers / 2;
  std::string json;
  for (int d = 0; d < 2; ++d) {
    absl::StrAppend(&json, d == 0 ? "" : "]}, ", "{\"device\": \"w1/", d, "\", \"operations\": [");
    for (size_t i = 0; i < programs[d].size(); ++i) {
      const auto& [kind, stage, micro_batch] = programs[d][i];
      absl::StrAppend(&json, i == 0 ? "" : ", ", "{\"kind\": ", kind, ", \"stage\": ", stage,
                      ", \"micro_batch\": ", micro_batch, "}");
    }
  }
  return absl::StrCat(
      "{\"islands\": [{\"replicas\": [{\"micro_batch_sequences\": ", job.batch_sequences / 4,
      ", \"micro_batches\": 4, \"stages\": [{\"first_layer\": 0, \"layers\": ", first,
      ", \"devices\": [\"w1/0\"]}, {\"first_layer\": ", first, ", \"layers\": ", layers - first,
      ", \"devices\": [\"w1/1\"]}]}], \"programs\": [", json, "]}]}]}");
}

TEST_CASE("an_order_of_operations_that_the_job_pins_trains_as_one_device_does") {
  EngineJob job = PlannedJob(ModelFamily::kGpt2, true);
  job.batch_sequences = 8;
  PlanRequest request = MakePlanRequest(job, 2);
  request.spec.inner.micro_batch_sequences = 0;
  // Forwards, gradients of inputs (2) and of weights (3) in an order of no schedule.
  const std::vector<std::array<int, 3>> programs[2] = {{{1, 0, 1},
                                                        {1, 0, 0},
                                                        {1, 0, 3},
                                                        {1, 0, 2},
                                                        {2, 0, 1},
                                                        {2, 0, 0},
                                                        {3, 0, 0},
                                                        {2, 0, 2},
                                                        {3, 0, 1},
                                                        {2, 0, 3},
                                                        {3, 0, 2},
                                                        {3, 0, 3}},
                                                       {{1, 1, 1},
                                                        {1, 1, 0},
                                                        {2, 1, 1},
                                                        {2, 1, 0},
                                                        {1, 1, 3},
                                                        {3, 1, 0},
                                                        {1, 1, 2},
                                                        {3, 1, 1},
                                                        {2, 1, 2},
                                                        {3, 1, 2},
                                                        {2, 1, 3},
                                                        {3, 1, 3}}};
  request.spec.layout.plan = PinnedOrder(job, programs);
  const auto plan = PlanIsland(request);
  REQUIRE(plan.status().message() == "");
  for (const PlanProgram& program : plan->programs) {
    std::vector<std::array<int, 3>> ran;
    for (const PlanOp& op : program.ops) {
      const int kind = op.kind == PlanOpKind::kForward          ? 1
                       : op.kind == PlanOpKind::kInputGradient  ? 2
                       : op.kind == PlanOpKind::kWeightGradient ? 3
                                                                : 0;
      if (kind > 0) ran.push_back({kind, op.stage, op.micro_batch});
    }
    CHECK(ran == programs[program.device == "w1/0" ? 0 : 1]);
  }
  RequireExact(job, *plan);
}

TEST_CASE("devices that share layers by their speed train as one device does") {
  for (const ModelFamily family : {ModelFamily::kGpt2, ModelFamily::kLlama}) {
    const EngineJob job = PlannedJob(family, family == ModelFamily::kGpt2);
    PlanRequest request = MakePlanRequest(job, 2, {1, 2});
    // The request is as if one of them had been seen to be slow.
    for (LayerCost& cost : request.members[0].profiles[1].layers) {
      for (int64_t* ns : {&cost.forward_ns, &cost.input_gradient_ns, &cost.weight_gradient_ns,
                          &cost.optimizer_ns}) {
        *ns *= 8;
      }
    }
    request.spec.layout.tensor_parallel = 2;
    request.spec.layout.stages = request.spec.layout.replicas = 1;
    const auto plan = PlanIsland(request);
    REQUIRE(plan.status().message() == "");
    CAPTURE(plan->reason);
    REQUIRE(plan->tensor_split_ratios == std::vector<int32_t>{1, 3});
    REQUIRE(plan->replicas[0].stages[0].devices == std::vector<std::string>{"w1/1", "w1/0"});
    RequireExact(job, *plan);
  }
}

}  // namespace
}  // namespace atl::worker
