// What devices say of their speed while they train.

#include <catch2/catch.hpp>

#include "absl/strings/match.h"
#include "tests/island/island_harness.h"
#include "tests/island/layouts.h"

namespace atl::worker {
namespace {

TEST_CASE("of a tensor-parallel group that waits for its slow device only that one is slow") {
  EngineJob job;
  job.model.family = ModelFamily::kLlama;
  job.model.vocab = 31;
  job.model.d_model = 16;
  job.model.layers = 2;
  job.model.heads = job.model.kv_heads = 4;
  job.model.ffn = 24;
  job.model.max_positions = job.sequence_length = 8;
  job.batch_sequences = 4;
  IslandLayout layout;
  layout.name = "two devices share each layer";
  layout.tensor_parallel = 2;
  layout.replicas = {{{4}, 2, 2}};
  EngineOptions options;
  options.emulation.duration = [](const std::string& device, LayerKind, PlanOpKind, int64_t) {
    return std::chrono::microseconds(absl::EndsWith(device, "/1") ? 10000 : 0);
  };
  TestIsland island(job, MakePlan(layout), options);
  island.Set(LayerPart::kParameters, RandomWeights(job.model, 5));
  std::vector<DeviceWork> works;
  for (int step = 0; step < 40 && works.empty(); ++step) {
    const auto outcome = island.Step(RandomTokens(job, 4, step), 1e-3);
    REQUIRE(outcome.status().message() == "");
    works = outcome->work;
  }
  REQUIRE(works.size() == 2);
  for (const DeviceWork& work : works) {
    CHECK(work.tensor_parallel == 2);
    CHECK(work.blocks == 2 * 2);
    CHECK(work.forward_seconds > 0);
    CHECK(work.backward_seconds > 0);
  }
  // Both took as long; four layers of two micro-batches are 80 ms of F.
  CHECK(works[1].device == "w1/1");
  CHECK(works[1].forward_seconds >= 0.080);
  CHECK(works[0].forward_seconds < 0.5 * works[1].forward_seconds);
}

}  // namespace
}  // namespace atl::worker
