// Every layout gives the losses, gradients and weights of one device: replicas, tensor parallelism,
// recomputation, messages in chunks.

#include "tests/island/exactness.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <chrono>

#include "common/model/optimizer_state.h"
#include "tests/catch/limits.h"

namespace atl::worker {
namespace {

TEST_CASE("W with B, and recomputation of all layers or every second one, change nothing") {
  const std::vector<IslandLayout> layouts = {
      With(Pipeline("1f1b", {1, 2, 2, 1}, 4), "W with B",
           [](IslandLayout& s) { s.unsplit = true; }),
      With(Pipeline("zb-h1", {2, 2, 2}, 4), "recomputation, two workers",
           [](IslandLayout& s) { s.recompute = 1, s.workers = 2; }),
      With(Pipeline("zb-v", {2, 1, 1, 2}, 6, 2, true), "recomputation",
           [](IslandLayout& s) { s.recompute = 1; }),
      With(Pipeline("compact-zb", {2, 4}, 4), "recomputation of every second layer",
           [](IslandLayout& s) { s.recompute = 2; }),
      With(Pipeline("1f1b", {3, 2, 1}, 4), "recomputation of every second layer, W with B",
           [](IslandLayout& s) { s.recompute = 2, s.unsplit = true; })};
  for (const IslandLayout& spec : layouts) {
    for (const Kind kind : kFamilies) CheckExact(kind, spec);
  }
}

TEST_CASE("replicas with unequal shares and cuts train as one device does") {
  for (const IslandLayout& spec : Replicas()) {
    for (const Kind kind : {Kind::kGpt2, Kind::kLlama, Kind::kLlamaTied, Kind::kGpt2Untied}) {
      CheckExact(kind, spec);
    }
  }
}

TEST_CASE("replicas that share the optimizer's state among them train as one device does") {
  for (const IslandLayout& spec : Owners()) {
    for (const Kind kind : kFamilies) CheckExact(kind, spec);
  }
}

TEST_CASE("tensor-parallel layouts train as one device does") {
  for (const IslandLayout& spec : TensorParallel()) {
    for (const Kind kind : kFamilies) CheckExact(kind, spec);
  }
}

TEST_CASE("stages_with_tensor_parallel_groups_of_unlike_size_train_as_one_device_does") {
  for (const IslandLayout& spec : TensorParallelByStage()) {
    for (const Kind kind : kFamilies) {
      CheckExact(kind, spec);
      CheckExact(kind, spec, {.chunks = 4});
    }
  }
  IslandLayout ends = Pipeline("zb-h1", {2, 4}, 4);
  ends.name = "TP 4 and 1";
  ends.replicas[0].stage_ranks = {4, 1};
  CheckExact(Kind::kLlama, ends, {.chunks = 2});
  std::reverse(ends.replicas[0].stage_ranks.begin(), ends.replicas[0].stage_ranks.end());
  CheckExact(Kind::kGpt2Untied, ends, {.chunks = 2});
}

TEST_CASE("a_tied_head_and_its_embedding_in_groups_of_unlike_size_are_refused") {
  IslandLayout ends = Pipeline("1f1b", {3, 3}, 4);
  ends.replicas[0].stage_ranks = {2, 1};
  const EngineJob job = MakeJob(Kind::kGpt2);
  const IslandPlan plan = MakePlan(ends);
  std::vector<LocalDevice> devices;
  for (int index = 0; index < 3; ++index) devices.push_back(NewFakeDevice(index));
  Engine engine("w1", std::move(devices), {});
  LocalTransport transport(int64_t{1} << 20);
  LocalCommunicators communicators(atl::testing::kHangLimit);
  const absl::Status refused = engine.Configure(job, plan, &transport, &communicators);
  CHECK(refused.code() == absl::StatusCode::kInvalidArgument);
  CHECK_THAT(std::string(refused.message()), Catch::Contains("2 devices share the embedding"));
}

// Replicas and micro-batches then have unlike numbers of targets, and some of them none.
TEST_CASE("where_the_loss_counts_some_targets_layouts_train_as_one_device_does") {
  for (const Kind kind : kFamilies) {
    CheckExact(kind, Pipeline("zb-h1", {2, 2, 2}, 4), {.masked = true});
    CheckExact(kind, Replicas().back(), {.masked = true});
    CheckExact(kind, TensorParallel().back(), {.chunks = 4, .masked = true});
  }
}

// Stages between the first and the last find where documents begin, as chunks of a message do.
TEST_CASE("layouts_with_several_documents_a_sequence_train_as_one_device_does") {
  for (const Kind kind : {Kind::kGpt2, Kind::kLlama, Kind::kMistral, Kind::kGemma2}) {
    CheckExact(kind, Pipeline("zb-h1", {2, 2, 2}, 4), {.documents = Documents::kMask});
    CheckExact(kind, Replicas().back(), {.masked = true, .documents = Documents::kMask});
    CheckExact(kind, TensorParallel().back(), {.chunks = 4, .documents = Documents::kMask});
  }
  CheckExact(Kind::kGpt2,
             With(Pipeline("v-half", {1, 2, 2, 1}, 3, 2, true), "recomputation",
                  [](IslandLayout& s) { s.recompute = 1, s.workers = 2; }),
             {.chunks = 4, .documents = Documents::kContinue});
}

// Replicas that own all of the state, or share it; and tensor parallelism with either.
TEST_CASE("layouts_with_every_optimizer_train_as_one_device_does") {
  // Muon and RMSprop amplify the rounding of what a gradient has little of.
  const Variation f64{.compute = DType::kFloat64, .limits = {1e-9, 1e-8, 1e-6}};
  for (const InnerOptimizer optimizer : {InnerOptimizer::kSgd, InnerOptimizer::kRmsProp,
                                         InnerOptimizer::kLamb, InnerOptimizer::kMuon}) {
    CAPTURE(static_cast<int>(optimizer));
    const bool amplifies =
        optimizer == InnerOptimizer::kMuon || optimizer == InnerOptimizer::kRmsProp;
    Variation variation = amplifies ? f64 : Variation();
    variation.optimizer = optimizer;
    if (!amplifies) CheckExact(Kind::kGpt2, Replicas().back(), variation);
    CheckExact(Kind::kLlama, Owners()[0], variation);
    CheckExact(Kind::kGpt2, Owners()[1], variation);
    if (!AllowsTensorParallelism(optimizer)) continue;
    CheckExact(Kind::kGpt2, TensorParallel().back(), variation);
    CheckExact(Kind::kLlama, Owners()[3], variation);
  }
}

// Layouts with messages of 4, 3, 2 and 1 sequences, which go in up to four chunks.
TEST_CASE("messages in chunks train as one device does") {
  std::vector<IslandLayout> layouts = Replicas();
  layouts.push_back(Pipeline("zb-h1", {2, 2, 2}, 3));
  layouts.push_back(Pipeline("gpipe", {1, 4, 1}, 4));
  layouts.push_back(With(Pipeline("v-half", {1, 2, 2, 1}, 3, 2, true), "recomputation, two workers",
                         [](IslandLayout& s) { s.recompute = 1, s.workers = 2; }));
  layouts.push_back(TensorParallel().back());
  for (const IslandLayout& layout : layouts) {
    for (const Kind kind : kFamilies) CheckExact(kind, layout, {.chunks = 4});
  }
}

// In double precision what sets layouts apart is a million times smaller: it was rounding. Weights
// and gradients come out as floats, of which a last bit may differ here and there.
TEST_CASE("nothing but rounding sets layouts apart") {
  const Variation f64{.compute = DType::kFloat64, .limits = {1e-11, 1e-8, 1e-8}};
  Variation f64_in_chunks = f64;
  f64_in_chunks.chunks = 4;
  for (const Kind kind : {Kind::kGpt2, Kind::kLlamaTied}) {
    CheckExact(kind, Pipeline("zb-h1", {1, 2, 2, 1}, 6), f64);
    CheckExact(kind, Replicas().back(), f64);
    CheckExact(kind, TensorParallel().back(), f64_in_chunks);
    CheckExact(kind, Owners().front(), f64);
    CheckExact(kind, Owners()[1], f64);
  }
}

}  // namespace
}  // namespace atl::worker
