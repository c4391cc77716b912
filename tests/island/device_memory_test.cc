// Nothing that is not an operation touches a device's memory, and nothing counts on an operation
// being done when its call returns: on devices that are strict about both, islands train bit for
// bit as on the CPU, whose arithmetic they have.

#include <catch2/catch.hpp>

#include "tests/island/island_harness.h"
#include "tests/island/layouts.h"

namespace atl::worker {
namespace {

constexpr int kSteps = 4;
constexpr int64_t kBatch = 12;

EngineJob MakeJob(ModelFamily family, int32_t max_chunks = 1) {
  EngineJob job;
  job.model.family = family;
  job.model.vocab = 31;
  job.model.d_model = 32;
  job.model.layers = 4;
  job.model.heads = 8;
  job.model.kv_heads = family == ModelFamily::kGpt2 ? 8 : 4;
  job.model.ffn = 44;
  job.model.max_positions = 8;
  job.model.tied_head = family == ModelFamily::kGpt2;
  job.sequence_length = 8;
  job.batch_sequences = kBatch;
  job.max_chunks = max_chunks;
  return job;
}

struct Trained {
  std::vector<double> losses;
  Layers params, first_moments, second_moments;

  bool operator==(const Trained&) const = default;
};

Trained Train(const EngineJob& job, const IslandLayout& layout,
              TestIsland::MakeDevice make_device) {
  EngineOptions options;
  options.fixed_chunks = job.max_chunks;
  TestIsland island(job, MakePlan(layout), options, nullptr, make_device);
  island.Set(LayerPart::kParameters, RandomWeights(job.model, 3));
  Trained trained;
  for (int step = 0; step < kSteps; ++step) {
    const int64_t sequences = step == 2 ? 7 : kBatch;  // short or empty micro-batches
    const auto outcome = island.Step(RandomTokens(job, sequences, 40 + step), 3e-3);
    REQUIRE(outcome.status().message() == "");
    trained.losses.push_back(outcome->loss.mean());
    trained.losses.push_back(outcome->gradient_norm);
  }
  const auto loss = island.Evaluate(RandomTokens(job, kBatch, 5));
  REQUIRE(loss.status().message() == "");
  trained.losses.push_back(loss->mean());
  trained.params = island.Get(LayerPart::kParameters);
  trained.first_moments = island.Get(LayerPart::kFirstMoment);
  trained.second_moments = island.Get(LayerPart::kSecondMoment);
  return trained;
}

void RequireSame(const EngineJob& job, const IslandLayout& layout) {
  CAPTURE(layout.name);
  const Trained on_host = Train(job, layout, nullptr);
  const Trained on_devices = Train(job, layout, NewFakeDevice);
  REQUIRE(on_devices == on_host);
}

IslandLayout Pipeline(const std::string& schedule, std::vector<int32_t> stages, int micro_batches,
                      int chunks = 1, bool v_shape = false) {
  IslandLayout layout;
  layout.name = layout.schedule = schedule;
  layout.replicas = {{std::move(stages), micro_batches, kBatch / micro_batches}};
  layout.chunks_per_device = chunks;
  layout.v_shape = v_shape;
  return layout;
}

TEST_CASE("one device") { RequireSame(MakeJob(ModelFamily::kLlama), Pipeline("1f1b", {6}, 4)); }

TEST_CASE("pipelines, with split and fused backward, recomputation, and two stages a device") {
  RequireSame(MakeJob(ModelFamily::kGpt2), Pipeline("zb-h1", {2, 2, 2}, 4));
  RequireSame(MakeJob(ModelFamily::kLlama), Pipeline("zb-v", {1, 2, 2, 1}, 6, 2, true));
  IslandLayout fused = Pipeline("1f1b", {1, 2, 2, 1}, 4), recomputing = Pipeline("1f1b", {2, 4}, 4);
  fused.unsplit = true;
  fused.workers = 2;
  recomputing.recompute = 1;
  RequireSame(MakeJob(ModelFamily::kGpt2), fused);
  RequireSame(MakeJob(ModelFamily::kGpt2), recomputing);
}

TEST_CASE("messages in chunks") {
  RequireSame(MakeJob(ModelFamily::kLlama, 4), Pipeline("compact-zb", {2, 4}, 3));
}

TEST_CASE("replicas cut unlike, and tensor parallelism") {
  IslandLayout replicas, tensor;
  replicas.name = "replicas";
  replicas.schedule = "compact-zb";
  replicas.replicas = {{{2, 3, 1}, 4, 2}, {{6}, 2, 2}};
  RequireSame(MakeJob(ModelFamily::kGpt2), replicas);
  tensor.name = "TP 2";
  tensor.schedule = "compact-zb";
  tensor.replicas = {{{2, 4}, 4, 2}, {{6}, 2, 2}};
  tensor.tensor_parallel = 2;
  tensor.workers = 2;
  RequireSame(MakeJob(ModelFamily::kLlama), tensor);
}

TEST_CASE("layers that stay, move to another device of the worker, and are set to zero") {
  const EngineJob job = MakeJob(ModelFamily::kGpt2);
  IslandLayout two = Pipeline("1f1b", {2, 4}, 4), other = Pipeline("1f1b", {4, 2}, 4);
  two.workers = other.workers = 1;
  const auto train = [&](TestIsland::MakeDevice make_device) {
    TestIsland island(job, MakePlan(two), {}, nullptr, make_device);
    island.Set(LayerPart::kParameters, RandomWeights(job.model, 3));
    REQUIRE(island.Step(RandomTokens(job, kBatch, 1), 3e-3).status().message() == "");
    IslandPlan moved = MakePlan(other);
    REQUIRE(island.Configure(moved).message() == "");
    REQUIRE(island.Step(RandomTokens(job, kBatch, 2), 3e-3).status().message() == "");
    Layers all = island.Get(LayerPart::kParameters);
    island.SetOptimizerSteps(0);
    for (const std::vector<float>& zero : island.Get(LayerPart::kSecondMoment)) all.push_back(zero);
    return all;
  };
  REQUIRE(train(NewFakeDevice) == train(nullptr));
}

}  // namespace
}  // namespace atl::worker
