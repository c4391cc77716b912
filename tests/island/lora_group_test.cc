// Islands that train an adapter: every worker reads the frozen weights of its own layers.

#include <catch2/catch.hpp>

#include "tests/island/group_fixture.h"
#include "worker/model/weights.h"

namespace atl::worker {
namespace {

// A world with a model's folder, and a job that trains an adapter beside it.
struct LoraWorld : World {
  LoraWorld() {
    ModelConfig config = *ModelConfigFromSpec(spec.model, spec.data.sequence_length);
    const std::vector<LayerLayout> layouts = MakeLayouts(config);
    std::vector<float> values;
    const auto source = [&](int l) -> absl::StatusOr<std::span<const float>> {
      values.resize(static_cast<size_t>(layouts[static_cast<size_t>(l)].size));
      InitLayer(layouts[static_cast<size_t>(l)], config.layers, 3, values);
      for (float& value : values) value *= 2;  // or little depends on what is trained
      return values;
    };
    REQUIRE(WriteModelFolder(folder + "/base", config, layouts, source).ok());
    spec.model = {.initial_weights_path = folder + "/base"};
    spec.adapter = {.kind = AdapterKind::kLora, .rank = 4, .targets = {kAllLinear}};
  }
};

TEST_CASE("islands_train_an_adapter_as_one_device_does") {
  const LoraWorld world;
  for (const IslandLayout& layout :
       {Pipeline("two stages", {3, 3}, 2), Pipeline("ends alone", {1, 4, 1}, 3),
        Replicas("unequal replicas", {5, 3}, 2)}) {
    INFO(layout.name);
    SingleDeviceTrainer alone(world);
    TestGroup group(world, layout.workers, 2);
    std::vector<NodeId> names = {"w1", "w2", "w3"};
    names.resize(static_cast<size_t>(layout.workers));
    group.Take(layout, names);
    TestLeader& leader = *group["w1"].trainer;
    REQUIRE(leader.InitialWeights().ToString() == "OK");
    const double untrained = leader.Evaluate(0, 0)->loss;
    for (int64_t step = 0; step < 12; ++step) {
      REQUIRE(group["w1"].Step(step) == Approx(alone.Step(step)).epsilon(1e-5));
    }
    const auto loss = leader.Evaluate(12, 0);
    REQUIRE(loss.ok());
    CHECK(loss->loss == Approx(alone.trainer->Validate(12, 0)->loss).epsilon(1e-5));
    CHECK(loss->loss < untrained);
  }
}

TEST_CASE("after_a_death_others_read_the_frozen_weights_that_they_lack_and_go_on") {
  const LoraWorld world;
  SingleDeviceTrainer alone(world);
  TestGroup group(world, 3, 2);
  group.Take(Replicas("unequal replicas", {5, 3}, 2), {"w1", "w2"});
  REQUIRE(group["w1"].trainer->InitialWeights().ok());
  int64_t step = 0;
  for (; step < 4; ++step) {
    REQUIRE(group["w1"].Step(step) == Approx(alone.Step(step)).epsilon(1e-5));
  }
  group["w1"].Drain();
  group.Kill("w2");
  const Reconfigured taken = group.Take(Pipeline("two stages", {2, 4}, 2), {"w1", "w3"});
  INFO(taken.reason);
  REQUIRE(taken.kept);
  for (; step < 8; ++step) {
    REQUIRE(group["w1"].Step(step) == Approx(alone.Step(step)).epsilon(1e-5));
  }
  // Back on one: it reads again what it gave away.
  const Reconfigured back = group.Take(Pipeline("one stage", {6}, 1), {"w1", "w3"});
  REQUIRE(back.kept);
  for (; step < 10; ++step) {
    REQUIRE(group["w1"].Step(step) == Approx(alone.Step(step)).epsilon(1e-5));
  }
}

TEST_CASE("a_base_that_lacks_a_tensor_is_refused_when_the_job_is_opened") {
  LoraWorld world;
  std::filesystem::remove(world.folder + "/base/model.safetensors");
  const auto job = GroupJob::Open(world.spec, DType::kFloat32);
  REQUIRE_FALSE(job.ok());
  CHECK(absl::StrContains(job.status().message(), "model.initial_weights_path"));
}

}  // namespace
}  // namespace atl::worker
