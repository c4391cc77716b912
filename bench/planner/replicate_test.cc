#include "bench/planner/replicate.h"

#include <catch2/catch.hpp>

#include "common/rng.h"
#include "coordinator/simulator/bounds.h"
#include "coordinator/simulator/schedules.h"
#include "coordinator/simulator/testing/uniform.h"

namespace atl::sim {
namespace {

// `replicas` copies of a random pipeline; every transfer takes its turn on a lane per direction.
Problem CopiesOnALane(uint64_t seed, int replicas) {
  Rng rng(seed);
  UniformPipeline shape{.stages = 2 + static_cast<int>(rng.Below(4)),
                        .micro_batches = 2 + static_cast<int>(rng.Below(8)),
                        .forward_ns = 1 + static_cast<Nanos>(rng.Below(40)),
                        .backward_ns = 1 + static_cast<Nanos>(rng.Below(60)),
                        .weight_ns = static_cast<Nanos>(rng.Below(2) * 20),
                        .latency_ns = static_cast<Nanos>(rng.Below(60)),
                        .serial_ns = static_cast<Nanos>(rng.Below(20)),
                        .slots = 1 + static_cast<int>(rng.Below(8))};
  const Problem one = MakeUniform(shape);
  Problem problem;
  problem.network.lanes = 2;
  const int links = static_cast<int>(one.network.links.size());
  for (int r = 0; r < replicas; ++r) {
    for (Chunk chunk : one.chunks) {
      chunk.device += r * shape.stages;
      if (chunk.forward_link != kNoLink) chunk.forward_link += r * links;
      if (chunk.backward_link != kNoLink) chunk.backward_link += r * links;
      problem.chunks.push_back(chunk);
    }
    problem.devices.insert(problem.devices.end(), one.devices.begin(), one.devices.end());
    for (Link link : one.network.links) {
      link.lane = static_cast<int>(problem.network.links.size()) % 2;
      problem.network.links.push_back(link);
    }
    problem.pipelines.push_back({r * shape.stages, shape.stages, shape.micro_batches, r});
  }
  REQUIRE(Validate(problem).ok());
  return problem;
}

TEST_CASE("Equal replicas are found out, and one order serves them all") {
  const uint64_t seed = GENERATE(range(0, 60));
  INFO("seed " << seed);
  Problem problem = CopiesOnALane(seed, 3);
  const std::vector<Kind> kinds = FindPipelineKinds(problem);
  REQUIRE(kinds.size() == 1);
  CHECK(kinds[0].pipelines == std::vector<int>{0, 1, 2});
  const Problem alone = Alone(problem, 1);
  REQUIRE(Validate(alone).ok());
  const Schedule order = *OneForwardOneBackward(alone);
  const Schedule together = Together(problem, kinds, {order});
  REQUIRE(Validate(problem, together).ok());
  CHECK(together.device_ops == OneForwardOneBackward(problem)->device_ops);
  const auto found = SearchReplicas(problem, {.restarts = 40});
  REQUIRE(found.ok());
  CHECK(found->result.verdict == Verdict::kFits);
  CHECK(found->result.makespan_ns <= Greedy(problem, {}).result.makespan_ns);
  CHECK(found->result.makespan_ns >= MakespanBound(problem).time_ns);
  CHECK(MakespanBound(problem).time_ns >= MakespanBound(alone).time_ns);

  problem.chunks[0].forward_ns += 1;
  CHECK(FindPipelineKinds(problem).size() == 2);
  problem.chunks[0].device = problem.chunks.back().device;  // which works for two pipelines now
  CHECK(FindPipelineKinds(problem).empty());
}

}  // namespace
}  // namespace atl::sim
