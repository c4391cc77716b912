// The schedule families by name, and the building blocks of the V-shaped ones.

#include <algorithm>
#include <catch2/catch.hpp>

#include "coordinator/simulator/bounds.h"
#include "coordinator/simulator/schedules.h"
#include "coordinator/simulator/search.h"
#include "coordinator/simulator/testing/uniform.h"

namespace atl::sim {
namespace {

UniformPipeline ShapeFor(Placement placement, int stages) {
  return {.stages = stages,
          .micro_batches = 3 * stages,
          .forward_ns = 10,
          .backward_ns = 10,
          .weight_ns = 10,
          .chunks_per_device =
              placement == Placement::kInterleaved || placement == Placement::kV ? 2 : 1,
          .v_shape = placement == Placement::kV};
}

double PeakForwards(const Result& result) {
  int64_t peak = 0;
  for (const DeviceUse& use : result.devices) peak = std::max(peak, use.peak_bytes);
  return static_cast<double>(peak) / (1 << 20);
}

// The order in which a device takes F and B.
std::vector<Op> WithoutWeights(std::vector<Op> ops) {
  std::erase_if(ops, [](const Op& op) { return op.kind == OpKind::kWeight; });
  return ops;
}

TEST_CASE("Every family can be had by its name, whole and above the bound") {
  REQUIRE(ScheduleFamilies().size() == ScheduleNames().size());
  for (const ScheduleFamily& family : ScheduleFamilies()) {
    INFO(family.name);
    const Problem problem = MakeUniform(ShapeFor(family.placement, 4));
    const auto found = ScheduleByName(problem, family.name, {.restarts = 30});
    INFO(found.status().ToString());
    REQUIRE(found.ok());
    CHECK(found->result.verdict == Verdict::kFits);
    CHECK_FALSE(found->how.empty());
    CHECK(Validate(problem, found->schedule).ok());
    CHECK(found->result.makespan_ns >= MakespanBound(problem).time_ns);
  }
  const auto unknown = ScheduleByName(MakeUniform({.stages = 2}), "zb-w", {});
  CHECK_THAT(std::string(unknown.status().message()), Catch::Contains("no schedule \"zb-w\""));
  CHECK_THAT(std::string(unknown.status().message()), Catch::Contains("v-half"));
}

TEST_CASE("A family that takes another placement says so") {
  const Problem plain = MakeUniform(ShapeFor(Placement::kOneChunk, 4));
  CHECK_FALSE(VBlockSchedules(plain, 6, 1).ok());
  CHECK_FALSE(ScheduleByName(MakeUniform(ShapeFor(Placement::kV, 4)), "1f1b", {}).ok());
  CHECK_FALSE(ScheduleByName(MakeUniform(ShapeFor(Placement::kV, 4)), "interleaved", {}).ok());
}

TEST_CASE("V-shaped schedules keep their share of memory and are faster than 1F1B") {
  const int p = GENERATE(3, 4, 6, 8);
  INFO("p " << p);
  const Problem problem = MakeUniform(ShapeFor(Placement::kV, p));
  const SearchOptions options{.objective = Objective::kPeriod, .restarts = 60};
  const auto full = ScheduleByName(problem, "zb-v", options);
  const auto half = ScheduleByName(problem, "v-half", options);
  const auto least = ScheduleByName(problem, "v-min", options);
  REQUIRE((full.ok() && half.ok() && least.ok()));
  CHECK(PeakForwards(full->result) <= p);
  CHECK(PeakForwards(half->result) <= p / 2 + 1);
  CHECK(PeakForwards(least->result) <= p / 3 + 2);
  // 1F1B holds p stage activations and takes (m + p - 1)(F + B + W).
  const Nanos plain = (3 * p + p - 1) * 2 * 30;
  for (const auto* found : {&full, &half, &least}) CHECK((*found)->result.period_ns < plain);
  CHECK(full->result.period_ns <= half->result.period_ns);
}

TEST_CASE("ZB-V with equal F, B and W loses two operations at most, with the memory of 1F1B") {
  const int p = GENERATE(4, 6, 8, 16);
  INFO("p " << p);
  UniformPipeline shape = ShapeFor(Placement::kV, p);
  shape.micro_batches = 4 * p;
  const auto found = ScheduleByName(MakeUniform(shape), "zb-v", {.objective = Objective::kPeriod});
  REQUIRE(found.ok());
  CHECK(PeakForwards(found->result) <= p);
  CHECK(found->result.period_ns <= (4 * p * 6 + 2) * 10);
}

TEST_CASE("A building block repeats every six operations without a gap, within its memory") {
  const int p = GENERATE(2, 3, 4, 5, 6, 8, 12);
  const int d = GENERATE(6, 3, 2);
  INFO("p " << p << ", D " << d);
  UniformPipeline shape = ShapeFor(Placement::kV, p);
  const auto play = [&](int micro_batches) {
    shape.micro_batches = micro_batches;
    const Problem problem = MakeUniform(shape);
    const auto blocks = VBlockSchedules(problem, d, 4);
    REQUIRE(blocks.ok());
    REQUIRE(blocks->size() == 4);
    std::vector<Result> results;
    for (const Schedule& block : *blocks) {
      const auto result = Simulate(problem, block, {});
      REQUIRE(result.ok());
      REQUIRE(result->verdict == Verdict::kFits);
      results.push_back(*result);
    }
    return results;
  };
  const std::vector<Result> some = play(4 * p);
  const std::vector<Result> more = play(6 * p);
  for (size_t i = 0; i < some.size(); ++i) {
    CHECK(more[i].period_ns - some[i].period_ns == 2 * p * 6 * 10);
    // p D / 6 whole activations, and what the turns hold.
    CHECK(PeakForwards(more[i]) <= p * d / 6.0 + 2.5);
  }
}

TEST_CASE("Filling with W keeps the order of F and B, and memory") {
  const int p = GENERATE(3, 6);
  const int slots = GENERATE(2, 3, 6);
  Problem problem = MakeUniform(ShapeFor(Placement::kV, p));
  for (Device& device : problem.devices) device.memory_bytes = int64_t{slots} << 20;
  int fitting = 0;
  for (const int d : {6, 3, 2}) {
    const auto blocks = VBlockSchedules(problem, d, 4);
    REQUIRE(blocks.ok());
    for (const Schedule& block : *blocks) {
      const Found filled = FillWithWeights(problem, block);
      if (filled.result.verdict == Verdict::kStuck) continue;
      ++fitting;
      REQUIRE(filled.result.verdict == Verdict::kFits);
      REQUIRE(Validate(problem, filled.schedule).ok());
      for (size_t i = 0; i < block.device_ops.size(); ++i) {
        CHECK(WithoutWeights(filled.schedule.device_ops[i]) == WithoutWeights(block.device_ops[i]));
      }
      CHECK(PeakForwards(filled.result) <= slots);
      const auto played = Simulate(problem, filled.schedule, {});
      CHECK(played->makespan_ns <= filled.result.makespan_ns);
    }
  }
  if (slots == 6) CHECK(fitting > 0);
}

}  // namespace
}  // namespace atl::sim
