// Islands train a model of images as one device does: its statistics are a micro-batch's in all.

#include <catch2/catch.hpp>
#include <cmath>
#include <map>

#include "common/model/hugging_face.h"
#include "tests/island/island_harness.h"
#include "tests/island/layouts.h"
#include "worker/model/weights.h"

namespace atl::worker {
namespace {

constexpr int64_t kImages = 12, kMicroBatch = 3;
constexpr int kSteps = 4;
constexpr double kLearningRate = 0.01;

// Six layers: four blocks, of which the second has another size, between the ends.
EngineJob JobOfImages(DType compute) {
  const auto config = ParseModelConfig(R"({"model_type": "resnet", "image_size": 9,
      "num_channels": 2, "num_labels": 5, "image_mean": [0.01, 0.01], "image_std": [0.01, 0.01],
      "depths": [1, 3], "hidden_sizes": [4, 8], "embedding_size": 4, "layer_type": "basic",
      "small_stem": true, "label_smoothing": 0.1})",
                                       "test");
  REQUIRE(config.ok());
  EngineJob job;
  job.model = *config;
  job.compute = compute;
  job.sequence_length = 1;
  job.batch_sequences = kImages;
  return job;
}

// Inverted bottlenecks with depthwise convolutions and squeeze-and-excitation.
EngineJob JobOfEfficientNet(DType compute) {
  const auto config = ParseModelConfig(R"({"model_type": "efficientnet", "image_size": 64,
      "num_channels": 1, "num_labels": 5, "width_coefficient": 0.1, "depth_coefficient": 0.1})",
                                       "test");
  REQUIRE(config.ok());
  EngineJob job = JobOfImages(compute);
  job.model = *config;
  return job;
}

Layers MakeInitialLayers(const EngineJob& job) {
  Layers layers;
  for (const LayerLayout& layout : MakeLayouts(job.model)) {
    layers.emplace_back(layout.size);
    InitLayer(layout, job.model.layers, 7, layers.back());
  }
  return layers;
}

struct Curve {
  std::vector<double> losses;
  Layers final;
  LossSum validation;
};

template <typename Step>
std::vector<double> RunSteps(const EngineJob& job, const Step& step) {
  std::vector<double> losses;
  for (int s = 0; s < kSteps; ++s) {
    const int64_t images = s == 2 ? kImages - 4 : kImages;  // the last micro-batches short, empty
    losses.push_back(step(RandomTokens(job, images, 100 + static_cast<uint64_t>(s))));
  }
  return losses;
}

Curve OneDevice(const EngineJob& job) {
  TestDevice device(job, kMicroBatch);
  device.Set(MakeInitialLayers(job));
  Curve curve;
  curve.losses =
      RunSteps(job, [&](const auto& images) { return device.Step(images, kLearningRate).mean(); });
  curve.final = device.Get(LayerPart::kParameters);
  curve.validation = device.Evaluate(RandomTokens(job, kImages, 9));
  return curve;
}

Curve Island(const EngineJob& job, const IslandPlan& plan) {
  TestIsland island(job, plan, {});
  island.Set(LayerPart::kParameters, MakeInitialLayers(job));
  Curve curve;
  curve.losses = RunSteps(job, [&](const auto& images) {
    const auto outcome = island.Step(images, kLearningRate);
    REQUIRE(outcome.status().message() == "");
    return outcome->loss.mean();
  });
  curve.final = island.Get(LayerPart::kParameters);
  const auto validation = island.Evaluate(RandomTokens(job, kImages, 9));
  REQUIRE(validation.ok());
  curve.validation = *validation;
  return curve;
}

std::vector<IslandLayout> Layouts() {
  IslandLayout pipeline, split, replicas, owners;
  pipeline.name = "three stages, recomputation";
  pipeline.replicas = {{{2, 1, 3}, 4, kMicroBatch}};
  pipeline.recompute = 1;
  split.name = "two stages, W apart, two workers";
  split.schedule = "zb-h1";
  split.replicas = {{{3, 3}, 4, kMicroBatch}};
  split.workers = 2;
  replicas.name = "replicas cut unlike, of unequal shares";
  replicas.replicas = {{{2, 4}, 3, kMicroBatch}, {{6}, 1, kMicroBatch}};
  owners.name = "three replicas, one copy of the optimizer's state";
  owners.replicas = {{{6}, 2, kMicroBatch}, {{4, 2}, 1, kMicroBatch}, {{6}, 1, kMicroBatch}};
  owners.optimizer_copies = 1;
  return {pipeline, split, replicas, owners};
}

void RequireCurve(const EngineJob& job, const Curve& expected, const IslandLayout& layout,
                  double tolerance) {
  CAPTURE(layout.name, static_cast<int>(job.compute));
  const Curve curve = Island(job, MakePlan(layout));
  for (size_t s = 0; s < expected.losses.size(); ++s) {
    CAPTURE(s);
    REQUIRE(std::abs(curve.losses[s] / expected.losses[s] - 1) < tolerance);
  }
  REQUIRE(RelativeDifference(curve.final, expected.final) < std::max(tolerance, 1e-7));
  REQUIRE(std::abs(curve.validation.mean() / expected.validation.mean() - 1) < 20 * tolerance);
  REQUIRE(curve.validation.tokens == kImages);
  REQUIRE(curve.validation.hits >= 0);
}

TEST_CASE("every_layout_trains_images_as_one_device_does") {
  const DType compute = GENERATE(DType::kFloat32, DType::kFloat64);
  const EngineJob job = JobOfImages(compute);
  const double tolerance = compute == DType::kFloat64 ? 1e-10 : 2e-4;
  const Curve expected = OneDevice(job);
  REQUIRE(expected.losses.back() < expected.losses.front() + 1);
  for (const IslandLayout& layout : Layouts()) RequireCurve(job, expected, layout, tolerance);
}

// In double precision: RMSprop amplifies the rounding of what a gradient has little of.
TEST_CASE("every_layout_trains_images_with_every_optimizer_as_one_device_does") {
  EngineJob job = JobOfImages(DType::kFloat64);
  const Curve adamw = OneDevice(job);
  for (const InnerOptimizer optimizer :
       {InnerOptimizer::kSgd, InnerOptimizer::kRmsProp, InnerOptimizer::kLamb}) {
    job.optimizer.kind = optimizer;
    CAPTURE(static_cast<int>(optimizer));
    const Curve expected = OneDevice(job);
    REQUIRE(RelativeDifference(expected.final, adamw.final) > 1e-4);
    for (const IslandLayout& layout : Layouts()) RequireCurve(job, expected, layout, 1e-8);
  }
}

TEST_CASE("stages_and_replicas_of_an_efficientnet_train_as_one_device_does") {
  const EngineJob job = JobOfEfficientNet(DType::kFloat64);
  REQUIRE(job.model.layers == 7);
  IslandLayout layout;
  layout.name = "replicas cut unlike, recomputation";
  layout.replicas = {{{2, 4, 3}, 3, kMicroBatch}, {{9}, 1, kMicroBatch}};
  layout.recompute = 1;
  RequireCurve(job, OneDevice(job), layout, 1e-8);
}

// Trains `steps` more steps from step `first` on.
std::vector<double> TrainSteps(const EngineJob& job, TestIsland& island, int first, int steps) {
  std::vector<double> losses;
  for (int s = first; s < first + steps; ++s) {
    const auto images = RandomTokens(job, kImages, 100 + static_cast<uint64_t>(s));
    const auto outcome = island.Step(images, kLearningRate);
    REQUIRE(outcome.status().message() == "");
    losses.push_back(outcome->loss.mean());
  }
  return losses;
}

TEST_CASE("images_go_on_after_a_restart_as_if_there_had_been_none") {
  // Running statistics are among the parameters. On the same layout bit for bit; on another one to
  // its rounding.
  const EngineJob job = JobOfImages(DType::kFloat32);
  const std::vector<IslandLayout> layouts = Layouts();
  TestIsland whole(job, MakePlan(layouts[0]), {});
  whole.Set(LayerPart::kParameters, MakeInitialLayers(job));
  std::vector<double> expected = TrainSteps(job, whole, 0, 2 * kSteps);
  for (const IslandLayout& after : {layouts[0], layouts[2]}) {
    CAPTURE(after.name);
    const double tolerance = after.name == layouts[0].name ? 0 : 2e-4;
    std::map<LayerPart, Layers> saved;
    std::vector<double> losses;
    {
      TestIsland before(job, MakePlan(layouts[0]), {});
      before.Set(LayerPart::kParameters, MakeInitialLayers(job));
      losses = TrainSteps(job, before, 0, kSteps);
      for (const LayerPart part :
           {LayerPart::kParameters, LayerPart::kFirstMoment, LayerPart::kSecondMoment}) {
        saved[part] = before.Get(part);
      }
    }
    TestIsland restarted(job, MakePlan(after), {});
    for (const auto& [part, layers] : saved) restarted.Set(part, layers);
    restarted.SetOptimizerSteps(kSteps);
    restarted.Skip(kSteps);
    for (const double loss : TrainSteps(job, restarted, kSteps, kSteps)) losses.push_back(loss);
    for (size_t s = 0; s < expected.size(); ++s) {
      CAPTURE(s);
      REQUIRE(std::abs(losses[s] / expected[s] - 1) <= tolerance);
    }
    REQUIRE(RelativeDifference(restarted.Get(LayerPart::kParameters),
                               whole.Get(LayerPart::kParameters)) <= tolerance);
    const auto images = RandomTokens(job, kImages, 9);
    REQUIRE(std::abs(restarted.Evaluate(images)->mean() / whole.Evaluate(images)->mean() - 1) <=
            20 * tolerance);
  }
}

TEST_CASE("tensor_parallelism_of_images_is_refused") {
  const EngineJob job = JobOfImages(DType::kFloat32);
  REQUIRE(absl::IsInvalidArgument(CutModel(job.model, 2, {}).status()));
}

}  // namespace
}  // namespace atl::worker
