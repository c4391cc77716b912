// Families whose blocks are made of other parts than GPT-2's and LLaMA's train in layouts as on one
// device.

#include <catch2/catch.hpp>

#include "tests/island/exactness.h"

namespace atl::worker {
namespace {

// Each by one layout with three unlike replicas and recomputation, and, where its heads can be cut,
// one with tensor parallelism, two workers and messages in chunks. In double precision: norms of
// small queries amplify rounding.
TEST_CASE("the_other_families_train_as_one_device_does") {
  Variation variation{.compute = DType::kFloat64, .limits = {1e-10, 1e-8, 1e-8}};
  for (const Kind kind : kOtherFamilies) {
    variation.chunks = 1;
    CheckExact(kind, Replicas().back(), variation);
    if (MakeJob(kind).model.architecture().qk_norm == QkNorm::kAllHeads) continue;
    variation.chunks = 4;
    CheckExact(kind, TensorParallel().back(), variation);
  }
}

// Experts are shared out unevenly, some blocks have none, and one rank's part is an eighth. A
// router's losses are the same whatever micro-batches and replicas its sequences are in.
TEST_CASE("a_mixture_of_experts_trains_in_every_layout_as_one_device_does") {
  Variation variation{.compute = DType::kFloat64, .limits = {1e-10, 1e-8, 1e-8}};
  std::vector<IslandLayout> layouts = TensorParallel();
  for (const auto& more : {Replicas(), TensorParallelByStage(), Owners()}) {
    layouts.insert(layouts.end(), more.begin(), more.end());
  }
  layouts.push_back(With(Pipeline("1f1b", {2, 2, 2}, 4), "recomputation",
                         [](IslandLayout& spec) { spec.recompute = 1; }));
  layouts.push_back(Pipeline("zb-v", {2, 1, 1, 2}, 6, 2, true));
  for (const IslandLayout& layout : layouts) CheckExact(Kind::kQwen2Moe, layout, variation);
  variation.documents = Documents::kMask;
  CheckExact(Kind::kMixtral, TensorParallel().back(), variation);
}

TEST_CASE("a_mixture_of_experts_trains_by_every_optimizer_as_on_one_device") {
  for (const InnerOptimizer optimizer :
       {InnerOptimizer::kLamb, InnerOptimizer::kMuon, InnerOptimizer::kSgd}) {
    const Variation variation{
        .compute = DType::kFloat64, .limits = {1e-10, 1e-8, 1e-8}, .optimizer = optimizer};
    CheckExact(Kind::kQwen2Moe, Owners().front(), variation);
    // Matrices that are stepped whole are not cut.
    if (optimizer == InnerOptimizer::kMuon) continue;
    CheckExact(Kind::kQwen2Moe, Owners().back(), variation);
  }
}

// Loads are of the whole step, whatever replicas and micro-batches its tokens are in, and one owner
// of the optimizer's state moves each bias.
TEST_CASE("a_correcting_bias_moves_in_every_layout_as_on_one_device") {
  const Variation variation{.compute = DType::kFloat64, .limits = {1e-10, 1e-8, 1e-8}};
  for (const IslandLayout& layout :
       {Replicas().back(), TensorParallel().back(), TensorParallelByStage().back(),
        Owners().front(), Owners().back(), Pipeline("zb-v", {2, 1, 1, 2}, 6, 2, true)}) {
    CheckExact(Kind::kDots1, layout, variation);
  }
  const Reference reference(MakeJob(Kind::kDots1));
  const LayerLayout block = MakeLayouts(MakeJob(Kind::kDots1).model)[1];
  int moved = 0;
  for (int64_t e = block.trained_size; e < block.size; ++e) {
    const auto at = static_cast<size_t>(e);
    if (std::abs(reference.final[1][at] - reference.start[1][at]) > 0.04) ++moved;
  }
  CHECK(moved > 1);
}

TEST_CASE("a_mixture_of_experts_trains_in_fp32_as_one_device_does") {
  CheckExact(Kind::kMixtral, Replicas().front());
  CheckExact(Kind::kMixtral, TensorParallel().front());
}

}  // namespace
}  // namespace atl::worker
