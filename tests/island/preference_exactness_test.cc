// Preference tuning: layouts train as one device does, which runs each answer in a sequence of its
// own and has the formulas anew.

#include <catch2/catch.hpp>

#include "tests/island/exactness.h"

namespace atl::worker {
namespace {

// Factors of gradients are floats.
Variation Pairs(double label_smoothing, int chunks = 1) {
  return {.compute = DType::kFloat64,
          .chunks = chunks,
          .limits = {1e-6, 1e-6, 1e-6},
          .documents = Documents::kPairs,
          .dpo = {.beta = 0.4, .label_smoothing = label_smoothing},
          .adapter = {.rank = 3, .alpha = 6, .targets = {kAllLinear}}};
}

TEST_CASE("pairs_train_in_every_layout_as_by_the_definition_on_one_device") {
  for (const Kind kind : kFamilies) {
    for (const auto& layouts : {Replicas(), TensorParallel(), Owners()}) {
      for (const IslandLayout& layout : layouts) CheckExact(kind, layout, Pairs(0));
    }
  }
}

TEST_CASE("pairs_with_smoothed_labels_and_messages_in_chunks_train_as_on_one_device") {
  CheckExact(Kind::kLlamaTied, Replicas().back(), Pairs(0.2, /*chunks=*/4));
  CheckExact(Kind::kLlama, TensorParallel().back(), Pairs(0.2, /*chunks=*/4));
  CheckExact(Kind::kGemma2, TensorParallel().back(), Pairs(0.2));
}

TEST_CASE("whole_models_train_by_pairs_in_layouts_as_by_the_definition_on_one_device") {
  Variation whole = Pairs(0.1);
  whole.adapter = {};
  for (const Kind kind : {Kind::kGpt2, Kind::kLlamaTied}) {
    CheckExact(kind, Replicas().back(), whole);
    CheckExact(kind, TensorParallel().back(), whole);
    CheckExact(kind, Owners().front(), whole);
  }
}

TEST_CASE("a_new_adapter_has_the_loss_of_a_coin_and_references_are_the_bases_alone") {
  Variation variation = Pairs(0);
  EngineJob job = MakeJob(Kind::kLlama);
  job.documents = variation.documents;
  job.dpo = variation.dpo;
  job.model.adapter = variation.adapter;
  const Reference reference(job, 1);
  TestIsland island(job, MakePlan(Replicas().front()), {});
  Layers nothing = reference.start;
  for (std::vector<float>& layer : nothing) std::ranges::fill(layer, 0.0f);
  island.Set(LayerPart::kParameters, nothing);
  const auto loss = island.Evaluate(reference.tokens[0]);
  REQUIRE(loss.status().message() == "");
  CHECK(loss->tokens == kBatch);  // pairs
  CHECK(loss->mean() == Approx(std::log(2.0)).epsilon(1e-5));
}

TEST_CASE("a_step_of_pairs_without_references_is_refused_and_changes_nothing") {
  Variation variation = Pairs(0);
  EngineJob job = MakeJob(Kind::kLlama);
  job.documents = variation.documents;
  job.model.adapter = variation.adapter;
  TestIsland island(job, MakePlan(Pipeline("1f1b", {6}, 3)), {});
  island.Set(LayerPart::kParameters, RandomWeights(job.model, 5));
  const auto read = [](int64_t, std::span<int32_t>) { return absl::OkStatus(); };
  CHECK(
      absl::IsInvalidArgument(island.engine(0).Step({.number = 1, .sequences = 2}, read).status()));
  CHECK(absl::IsInvalidArgument(
      island.engine(0).Step({.number = 2, .sequences = 2, .references = {0.5}}, read).status()));
  CHECK(island.engine(0).optimizer_steps() == 0);
}

}  // namespace
}  // namespace atl::worker
