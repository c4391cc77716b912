#include "common/protocol/learning_rate.h"

#include <catch2/catch.hpp>

namespace atl {
namespace {

TEST_CASE("The learning rate warms up linearly, follows a cosine, and stays at its end") {
  InnerSpec inner;
  inner.learning_rate = 1.0;
  inner.final_learning_rate_ratio = 0.2;
  inner.warmup_fraction = 0.1;
  const auto rate = [&](int64_t tokens) { return LearningRate(inner, 1000, tokens, 3); };
  CHECK(rate(50) == Approx(0.5));
  CHECK(rate(100) == Approx(1.0));
  CHECK(rate(550) == Approx(0.6));  // half way down
  CHECK(rate(1000) == Approx(0.2));
  CHECK(rate(5000) == Approx(0.2));
  CHECK(rate(99) < rate(100));
  CHECK(rate(101) > rate(102));
}

TEST_CASE("Without a warm-up the first step has the full rate") {
  InnerSpec inner;
  inner.learning_rate = 1.0;
  inner.warmup_fraction = 0;
  CHECK(LearningRate(inner, 1000000, 1, 1) == Approx(1.0));
}

TEST_CASE("scaled_learning_rate_grows_with_islands_up_to_twice") {
  InnerSpec inner;
  inner.learning_rate = 1.0;
  inner.warmup_fraction = 0;
  inner.learning_rate_scaling = RateScaling::kAuto;
  CHECK(LearningRate(inner, 1000000, 1, 0) == Approx(1.0));
  CHECK(LearningRate(inner, 1000000, 1, 1) == Approx(1.0));
  CHECK(LearningRate(inner, 1000000, 1, 3) == Approx(1.3904));
  CHECK(LearningRate(inner, 1000000, 1, 64) == Approx(2.0));
}

}  // namespace
}  // namespace atl
