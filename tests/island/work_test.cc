// Tests of the speed that devices report while they train.

#include <atomic>
#include <catch2/catch.hpp>
#include <thread>

#include "absl/strings/match.h"
#include "tests/island/engine_fixture.h"
#include "tests/island/island_harness.h"
#include "tests/island/layouts.h"

namespace atl::worker {
namespace {

TEST_CASE("of a tensor-parallel group that waits for its slow device only that one is slow") {
  EngineJob job = Job();
  job.model.layers = 2;
  job.batch_sequences = 4;
  IslandLayout layout;
  layout.name = "two devices share each layer";
  layout.tensor_parallel = 2;
  layout.replicas = {{{4}, 2, 2}};
  EngineOptions options;
  options.emulation.duration = [](const std::string& device, LayerKind, PlanOpKind, int64_t) {
    return std::chrono::microseconds(absl::EndsWith(device, "/1") ? 10000 : 1000);
  };
  TestIsland island(job, MakePlan(layout), options);
  island.Set(LayerPart::kParameters, RandomWeights(job.model, 5));
  // Four layers of two micro-batches are 8 and 80 ms of F, and the wait for each other is no
  // device's work. A busy machine adds to what both take: that ends.
  std::vector<DeviceWork> works;
  const auto slower_by = [&] {
    return works.size() == 2 ? works[1].forward_seconds - works[0].forward_seconds : 0;
  };
  for (int step = 0; step < 1000 && slower_by() != Approx(0.072); ++step) {
    const auto outcome = island.Step(RandomTokens(job, 4, step), 1e-3);
    REQUIRE(outcome.status().message() == "");
    if (!outcome->work.empty()) works = outcome->work;
  }
  CHECK(slower_by() == Approx(0.072));
  REQUIRE(works.size() == 2);
  for (const DeviceWork& work : works) {
    CHECK(work.tensor_parallel == 2);
    CHECK(work.blocks == 2 * 2);
    CHECK(work.backward_seconds > 0);
  }
  CHECK(works[1].device == "w1/1");
  CHECK(works[0].forward_seconds >= 0.008);
}

TEST_CASE("devices that emulate computation report the emulated times, on a busy machine too") {
  const EngineJob job = Job();
  IslandLayout layout;
  layout.name = "two stages";
  layout.replicas = {{{3, 3}, 4, 2}};
  EngineOptions options;
  options.emulation = EmulatedBlocks(std::chrono::microseconds(100));
  TestIsland island(job, MakePlan(layout), options);
  std::atomic<bool> ended = false;
  std::vector<std::jthread> busy;  // more threads than most machines have cores
  for (unsigned i = 0; i < 2 * std::thread::hardware_concurrency(); ++i) {
    busy.emplace_back([&] {
      while (!ended) {
      }
    });
  }
  island.Set(LayerPart::kParameters, RandomWeights(job.model, 5));
  std::vector<DeviceWork> works;
  for (int step = 0; step < 40 && works.empty(); ++step) {
    const auto outcome = island.Step(RandomTokens(job, 8, step), 1e-3);
    if (outcome.ok()) works = outcome->work;
  }
  ended = true;
  REQUIRE(works.size() == 2);
  // F of 4 micro-batches of 2 sequences, through a tenth of a block and two, or two and a half.
  CHECK(works[0].forward_seconds == Approx(8 * 2.1e-4));
  CHECK(works[1].forward_seconds == Approx(8 * 2.5e-4));
  CHECK(works[0].backward_seconds == Approx(8 * 4.1e-4));
  CHECK(works[1].backward_seconds == Approx(8 * 5e-4));
}

}  // namespace
}  // namespace atl::worker
