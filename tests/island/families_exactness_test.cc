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

}  // namespace
}  // namespace atl::worker
