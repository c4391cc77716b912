// A model with an adapter trains in layouts as on one device.

#include <catch2/catch.hpp>

#include "tests/island/exactness.h"

namespace atl::worker {
namespace {

AdapterConfig Lora(std::vector<std::string> targets) {
  return {.rank = 3, .alpha = 6, .targets = std::move(targets)};
}

// In double precision, so that a sum that is missing somewhere does not pass for rounding.
Variation InDouble(std::vector<std::string> targets, int chunks = 1) {
  return {.compute = DType::kFloat64,
          .chunks = chunks,
          .limits = {1e-10, 1e-8, 1e-8},
          .adapter = Lora(std::move(targets))};
}

TEST_CASE("adapters_of_all_matrices_train_in_every_layout_as_on_one_device") {
  for (const Kind kind : kFamilies) {
    for (const auto& layouts : {Replicas(), TensorParallel(), Owners()}) {
      for (const IslandLayout& layout : layouts) CheckExact(kind, layout, InDouble({kAllLinear}));
    }
  }
}

TEST_CASE("adapters_of_some_matrices_train_in_layouts_as_on_one_device") {
  const std::vector<std::string> targets = {"q_proj", "v_proj", "down_proj"};
  CheckExact(Kind::kLlama, Replicas().back(), InDouble(targets));
  CheckExact(Kind::kLlama, TensorParallel().back(), InDouble(targets, /*chunks=*/4));
  CheckExact(Kind::kLlama, Owners().back(), InDouble(targets));
}

// The head of the tied ones has a copy of the frozen table where the embedding is elsewhere.
TEST_CASE("adapters_of_other_families_train_in_layouts_as_on_one_device") {
  for (const Kind kind : {Kind::kLlamaTied, Kind::kQwen2, Kind::kQwen3, Kind::kOlmo2, Kind::kGemma2,
                          Kind::kMistral}) {
    CheckExact(kind, Replicas().back(), InDouble({kAllLinear}));
    if (MakeJob(kind).model.architecture().qk_norm == QkNorm::kAllHeads) continue;
    CheckExact(kind, TensorParallel().back(), InDouble({kAllLinear}));
  }
}

TEST_CASE("adapters_of_attention_train_beside_frozen_experts_as_on_one_device") {
  for (const Kind kind : {Kind::kMixtral, Kind::kQwen2Moe}) {
    CheckExact(kind, Replicas().back(), InDouble({"q_proj", "v_proj", "o_proj"}));
    CheckExact(kind, TensorParallel().back(), InDouble({"q_proj", "v_proj", "o_proj"}));
  }
}

// Matrices are coded whole, whatever each rank has of them.
TEST_CASE("adapters_train_beside_a_base_of_codes_in_layouts_as_on_one_device") {
  for (const WeightCode code : {WeightCode::kNf4, WeightCode::kInt8}) {
    Variation variation{.steps = 3, .adapter = Lora({kAllLinear})};
    variation.adapter.base = code;
    for (const auto& layouts : {Replicas(), TensorParallel(), TensorParallelByStage(), Owners()}) {
      CheckExact(Kind::kLlama, layouts.back(), variation);
    }
    CheckExact(Kind::kGpt2, TensorParallel().back(), variation);
    CheckExact(Kind::kQwen3, TensorParallel()[1], variation);
  }
}

TEST_CASE("adapters_of_attention_train_beside_experts_and_codes_as_on_one_device") {
  Variation variation{.steps = 3, .adapter = Lora({"q_proj", "o_proj"})};
  variation.adapter.base = WeightCode::kNf4;
  CheckExact(Kind::kQwen2Moe, TensorParallel().back(), variation);
}

TEST_CASE("adapters_train_by_every_optimizer_that_owners_share_as_on_one_device") {
  for (const InnerOptimizer optimizer : {InnerOptimizer::kLamb, InnerOptimizer::kMuon}) {
    Variation variation = InDouble({kAllLinear});
    variation.optimizer = optimizer;
    CheckExact(Kind::kLlama, Owners().front(), variation);
  }
}

}  // namespace
}  // namespace atl::worker
