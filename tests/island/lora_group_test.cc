// Islands that train an adapter: every worker reads the frozen weights of its own layers.

#include <catch2/catch.hpp>
#include <cmath>
#include <fstream>

#include "common/protocol/host_copies.h"
#include "tests/island/cuts.h"
#include "tests/island/solo_island.h"
#include "worker/model/weights.h"

namespace atl::worker {
namespace {

// A world with a model's folder, and a job that trains an adapter beside it.
struct LoraWorld : World {
  explicit LoraWorld(AdapterBase base = AdapterBase::kCompute) : config(MakeConfig(base)) {
    WriteBase(3);
    spec.model = {.initial_weights_path = folder + "/base"};
    spec.adapter = {.kind = AdapterKind::kLora, .rank = 4, .targets = {kAllLinear}, .base = base};
  }
  ModelConfig MakeConfig(AdapterBase base) {
    if (base != AdapterBase::kCompute) {  // rows of whole blocks of codes, on two ranks too
      spec.model.hidden = 128;
      spec.model.feed_forward = 256;
    }
    return *ModelConfigFromSpec(spec.model, spec.data.sequence_length);
  }
  void WriteBase(uint64_t seed) const {
    std::vector<float> values;
    const auto source = [&](int l) -> absl::StatusOr<std::span<const float>> {
      values.resize(static_cast<size_t>(layouts[static_cast<size_t>(l)].size));
      InitLayer(layouts[static_cast<size_t>(l)], config.layers, seed, values);
      for (float& value : values) value *= 2;  // or little depends on what is trained
      return values;
    };
    REQUIRE(WriteModelFolder(folder + "/base", config, layouts, source).ok());
  }

  const ModelConfig config;
  const std::vector<LayerLayout> layouts = MakeLayouts(config);
};

const IslandLayout kCutLayers = {.name = "cut layers",
                                 .replicas = {{{2, 4}, 4, 2}},
                                 .tensor_parallel = 2,
                                 .tensor_split_ratios = {1, 3},
                                 .workers = 2};

void TrainAsOneDevice(const LoraWorld& world, const std::vector<IslandLayout>& layouts) {
  for (const IslandLayout& layout : layouts) {
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

TEST_CASE("islands_train_an_adapter_as_one_device_does") {
  TrainAsOneDevice(LoraWorld(),
                   {Pipeline("two stages", {3, 3}, 2), Pipeline("ends alone", {1, 4, 1}, 3),
                    Replicas("unequal replicas", {5, 3}, 2), kCutLayers});
}

TEST_CASE("islands_train_an_adapter_beside_codes_as_one_device_does") {
  TrainAsOneDevice(LoraWorld(AdapterBase::kNf4), {Pipeline("two stages", {3, 3}, 2), kCutLayers});
  TrainAsOneDevice(LoraWorld(AdapterBase::kInt8), {kCutLayers});
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

// Pairs of answers for the adapter: an epoch of six steps.
struct PairWorld : LoraWorld {
  PairWorld() {
    spec.data.path = folder + "/pairs.jsonl";
    std::ofstream pairs(spec.data.path);
    for (size_t i = 0; i < 60; ++i) {
      pairs << R"({"prompt": ")" << static_cast<char>('a' + i % 20) << R"(", "chosen": ")"
            << std::string(1 + i % 4, 'y') << R"(", "rejected": ")" << std::string(1 + i % 3, 'n')
            << "\"}\n";
    }
    spec.data.format = DataFormat::kChat;
    spec.data.documents = Documents::kPairs;
    spec.objective = {.kind = ObjectiveKind::kDpo, .beta = 0.3};
  }
};

double StepPairs(TestGroup& group, int64_t step) {
  const auto loss = group["w1"].trainer->Step(Batch(step), GetLearningRate(step));
  INFO(loss.status().ToString());
  REQUIRE(loss.ok());
  REQUIRE(loss->tokens == kBatch);  // pairs
  return loss->loss;
}

TEST_CASE("references_are_found_once_and_reach_workers_that_come_later") {
  const PairWorld world;
  TestGroup alone(world, 1, 2), group(world, 3, 2);
  alone.Take(Pipeline("one stage", {6}, 1), {"w1"});
  group.Take(Replicas("unequal replicas", {5, 3}, 2), {"w1", "w2"});
  for (TestGroup* each : {&alone, &group}) {
    REQUIRE((*each)["w1"].trainer->InitialWeights().ToString() == "OK");
    CHECK((*each)["w1"].trainer->Evaluate(12, 0)->loss == Approx(std::log(2)).epsilon(1e-4));
  }
  const auto known = [&](const NodeId& worker, int64_t step) {
    return group[worker].member->GetReferences({.ranges = Batch(step)}).size();
  };
  CHECK(known("w1", 0) == 0);
  int64_t step = 0;
  for (; step < 5; ++step) {
    REQUIRE(StepPairs(group, step) == Approx(StepPairs(alone, step)).epsilon(1e-5));
  }
  CHECK(known("w1", 4) == kBatch);
  CHECK(known("w2", 4) == kBatch);
  group["w1"].Drain();
  group.Kill("w2");
  REQUIRE(group.Take(Pipeline("two stages", {2, 4}, 2), {"w1", "w3"}).kept);
  CHECK(known("w1", 5) == 0);
  for (; step < 9; ++step) {
    REQUIRE(StepPairs(group, step) == Approx(StepPairs(alone, step)).epsilon(1e-5));
    // The second epoch has the pairs of the first.
    CHECK(known("w1", 6) == kBatch);
    CHECK(known("w3", 0) == 0);
  }
  const auto loss = group["w1"].trainer->Evaluate(12, 0);
  REQUIRE(loss.ok());
  CHECK(loss->tokens == 12);
  CHECK(loss->loss == Approx(alone["w1"].trainer->Evaluate(12, 0)->loss).epsilon(1e-5));
  CHECK(loss->loss < 0.99 * std::log(2));
}

// Its reference is a folder, which takes the parameters' place while it is needed.
TEST_CASE("islands_of_two_workers_tune_a_whole_model_by_pairs_as_one_does_through_a_death") {
  PairWorld world;
  world.spec.adapter = {};
  world.spec.objective.reference = world.folder + "/base";
  TestGroup alone(world, 1, 2), group(world, 3, 2);
  alone.Take(Pipeline("one stage", {6}, 1), {"w1"});
  group.Take(Replicas("unequal replicas", {5, 3}, 2), {"w1", "w2"});
  for (TestGroup* each : {&alone, &group}) {
    REQUIRE((*each)["w1"].trainer->InitialWeights().ToString() == "OK");
    CHECK((*each)["w1"].trainer->Evaluate(12, 0)->loss == Approx(std::log(2)).epsilon(1e-4));
  }
  int64_t step = 0;
  for (; step < 5; ++step) {
    REQUIRE(StepPairs(group, step) == Approx(StepPairs(alone, step)).epsilon(1e-4));
  }
  group["w1"].Drain();
  group.Kill("w2");
  REQUIRE(group.Take(Pipeline("two stages", {2, 4}, 2), {"w1", "w3"}).kept);
  for (; step < 9; ++step) {
    REQUIRE(StepPairs(group, step) == Approx(StepPairs(alone, step)).epsilon(1e-4));
  }
  // References found behind five steps are those of the folder, as without any step.
  TestGroup fresh(world, 1, 2);
  fresh.Take(Pipeline("one stage", {6}, 1), {"w1"});
  REQUIRE(fresh["w1"].trainer->InitialWeights().ok());
  StepPairs(fresh, 5);
  const ReferenceCall call{.ranges = Batch(5)};
  const std::vector<double> late = group["w3"].member->GetReferences(call);
  const std::vector<double> early = fresh["w1"].member->GetReferences(call);
  REQUIRE(late.size() == kBatch);
  REQUIRE(early.size() == kBatch);
  for (size_t i = 0; i < kBatch; ++i) CHECK(late[i] == Approx(early[i]).margin(1e-4));
  const auto loss = group["w1"].trainer->Evaluate(12, 0);
  REQUIRE(loss.ok());
  CHECK(loss->loss == Approx(alone["w1"].trainer->Evaluate(12, 0)->loss).epsilon(1e-4));
  CHECK(loss->loss < 0.99 * std::log(2));
}

// A validation may have broken off while it found them.
TEST_CASE("a_validation_whose_references_are_known_in_part_brings_the_parameters_back") {
  PairWorld world;
  world.spec.adapter = {};
  TestGroup group(world, 1, 2);
  group.Take(Pipeline("one stage", {6}, 1), {"w1"});
  TestLeader& leader = *group["w1"].trainer;
  REQUIRE(leader.InitialWeights().ok());
  const double first = leader.Evaluate(kBatch, 0)->loss;  // there are 12
  for (int64_t step = 0; step < 3; ++step) StepPairs(group, step);
  const double before = leader.Evaluate(kBatch, 0)->loss;
  CHECK(before != first);
  REQUIRE(leader.Validate().ok());
  CHECK(leader.Evaluate(kBatch, 0)->loss == before);
}

// Layers without an adapter's parameters have nothing to fetch, and are whole again.
TEST_CASE("a_step_of_adapters_whose_owners_have_taken_it_counts_and_others_follow") {
  CheckOwnersStepCounts(LoraWorld());
}

TEST_CASE("bases_of_equal_shapes_and_other_weights_have_other_digests") {
  const LoraWorld world;
  const auto open = [&](const JobSpec& spec) {
    const auto job = GroupJob::Open(spec, DType::kFloat32);
    INFO(job.status());
    REQUIRE(job.ok());
    return job->facts;
  };
  const JobFacts first = open(world.spec);
  CHECK(first.base_digest != 0);
  CHECK(open(world.spec) == first);
  world.WriteBase(4);
  JobFacts other = open(world.spec);
  CHECK(std::exchange(other.base_digest, first.base_digest) != first.base_digest);
  CHECK(other == first);
  JobSpec whole = world.spec;
  whole.adapter = {};
  CHECK(open(whole).base_digest == 0);
}

TEST_CASE("a_base_that_was_exchanged_since_the_job_was_opened_is_not_read") {
  const LoraWorld world;
  TestGroup group(world, 1);
  world.WriteBase(4);
  const IslandLayout layout = Pipeline("one stage", {6}, 1);
  CHECK_FALSE(group.Order(group.PlanFor(layout, {"w1"})).ok());
  world.WriteBase(3);
  group.Take(layout, {"w1"});
  REQUIRE(group["w1"].trainer->InitialWeights().ok());
  CHECK(group["w1"].Step(0) == Approx(SingleDeviceTrainer(world).Step(0)).epsilon(1e-5));
}

TEST_CASE("a_lone_worker_needs_room_for_frozen_weights_on_its_host") {
  const LoraWorld world;
  int64_t trained = 0, frozen = 0;
  for (const LayerLayout& layout : GroupJob::Open(world.spec, DType::kFloat32)->layouts) {
    trained += 4 * layout.size;
    frozen += 4 * layout.frozen_size;
  }
  const auto prepare = [&](int64_t host_bytes) {
    SoloIsland island({.spec = world.spec,
                       .make_device =
                           [](int index) {
                             return LocalDevice{index, NewCpuBackend(1), NewCpuBackend(1)};
                           },
                       .leader = {.host_bytes = host_bytes, .devices_on_host = true}});
    return island.trainer().Do<Prepared>(Prepare{kJob, island.spec}).status();
  };
  JobSpec alone = world.spec;
  alone.layout.island = IslandScope::kWorker;
  const int64_t least = (OuterCopies(alone) + SaveCopies(alone) + 4) * trained + frozen;
  CHECK(prepare(least).ToString() == "OK");
  CHECK_FALSE(prepare(least - 1).ok());
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
