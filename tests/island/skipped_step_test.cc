// A step whose gradient is too large, or not finite, changes nothing, in any layout.

#include <catch2/catch.hpp>
#include <limits>

#include "tests/island/exactness.h"

namespace atl::worker {
namespace {

constexpr LayerPart kState[] = {LayerPart::kParameters, LayerPart::kFirstMoment,
                                LayerPart::kSecondMoment};

std::vector<IslandLayout> Layouts() {
  return {
      Pipeline("1f1b", {6}, 4),
      With(Pipeline("zb-h1", {2, 2, 2}, 4), "two workers", [](IslandLayout& s) { s.workers = 2; }),
      Replicas().front(), Owners().front(), TensorParallel().front()};
}

class Island : public TestIsland {
 public:
  Island(const EngineJob& job, const IslandLayout& layout)
      : TestIsland(job, MakePlan(layout), {.fixed_chunks = 1}), job_(job) {
    Set(LayerPart::kParameters, RandomWeights(job.model, 5));
  }
  StepOutcome Train(uint64_t batch, double norm_limit = 0) {
    return *Step(RandomTokens(job_, kBatch, batch), kLearningRate, norm_limit);
  }
  std::vector<Layers> State() {
    std::vector<Layers> state;
    for (const LayerPart part : kState) state.push_back(Get(part));
    return state;
  }

 private:
  const EngineJob job_;
};

TEST_CASE("a_step_above_its_norm_limit_counts_as_taken_and_changes_nothing_in_any_layout") {
  const EngineJob job = MakeJob(Kind::kLlama);
  for (const IslandLayout& layout : Layouts()) {
    INFO(layout.name);
    Island island(job, layout), without(job, layout);
    const double norm = island.Train(1).gradient_norm;
    without.Train(1);
    const auto before = island.State();
    const StepOutcome skipped = island.Train(2, norm / 1000);
    CHECK(skipped.skipped);
    CHECK(skipped.gradient_norm > norm / 1000);
    CHECK(island.State() == before);
    // The steps after it are those of an island that never made it, but for their number.
    without.SetOptimizerSteps(2);
    CHECK_FALSE(island.Train(3, 1000 * norm).skipped);
    without.Train(3);
    CHECK(island.State() == without.State());
  }
}

TEST_CASE("a_step_that_is_not_finite_leaves_the_moments_and_other_parameters_as_they_are") {
  const EngineJob job = MakeJob(Kind::kLlama);
  for (const IslandLayout& layout : Layouts()) {
    INFO(layout.name);
    Island island(job, layout);
    island.Train(1);
    const Layers whole = island.Get(LayerPart::kParameters);
    Layers broken = whole;
    broken[1][0] = std::numeric_limits<float>::infinity();
    const Layers moments = island.Get(LayerPart::kFirstMoment);
    island.Set(LayerPart::kParameters, broken);
    CHECK(island.Train(2).skipped);
    CHECK(island.Get(LayerPart::kFirstMoment) == moments);
    CHECK(island.Get(LayerPart::kParameters) == broken);
    island.Set(LayerPart::kParameters, whole);
    CHECK_FALSE(island.Train(2).skipped);
  }
}

}  // namespace
}  // namespace atl::worker
