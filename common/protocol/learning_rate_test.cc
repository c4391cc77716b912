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

// The rates of a job of 1,000 tokens, 100 of them its warm-up, that ends at a fifth.
class Scheduled {
 public:
  Scheduled(RateSchedule schedule, DecayShape shape = DecayShape::kLinear) {
    inner_.learning_rate = 1.0;
    inner_.final_learning_rate_ratio = 0.2;
    inner_.warmup_fraction = 0.1;
    inner_.schedule = schedule;
    inner_.decay_fraction = 0.4;
    inner_.decay_shape = shape;
  }
  double At(int64_t tokens) const { return LearningRate(inner_, 1000, tokens, 1); }

 private:
  InnerSpec inner_;
};

TEST_CASE("every_schedule_warms_up_alike") {
  for (const RateSchedule schedule : {RateSchedule::kCosine, RateSchedule::kLinear,
                                      RateSchedule::kConstant, RateSchedule::kWsd}) {
    CHECK(Scheduled(schedule).At(50) == Approx(0.5));
    CHECK(Scheduled(schedule).At(100) == Approx(1.0));
  }
}

TEST_CASE("linear_schedule_falls_along_a_line_to_the_end") {
  const Scheduled rate(RateSchedule::kLinear);
  CHECK(rate.At(325) == Approx(0.8));
  CHECK(rate.At(550) == Approx(0.6));
  CHECK(rate.At(1000) == Approx(0.2));
  CHECK(rate.At(2000) == Approx(0.2));
}

TEST_CASE("constant_schedule_never_falls") {
  const Scheduled rate(RateSchedule::kConstant);
  CHECK(rate.At(1000) == 1.0);
  CHECK(rate.At(9000) == 1.0);
}

TEST_CASE("wsd_is_stable_until_its_decay") {
  for (const DecayShape shape : {DecayShape::kLinear, DecayShape::kCosine, DecayShape::kSqrt}) {
    const Scheduled rate(RateSchedule::kWsd, shape);
    CHECK(rate.At(300) == 1.0);
    CHECK(rate.At(600) == Approx(1.0));
    CHECK(rate.At(1000) == Approx(0.2));
    CHECK(rate.At(1500) == Approx(0.2));
  }
  // A quarter of the decay is done.
  CHECK(Scheduled(RateSchedule::kWsd, DecayShape::kLinear).At(700) == Approx(1 - 0.8 * 0.25));
  CHECK(Scheduled(RateSchedule::kWsd, DecayShape::kCosine).At(700) ==
        Approx(1 - 0.8 * 0.1464466094));
  CHECK(Scheduled(RateSchedule::kWsd, DecayShape::kSqrt).At(700) == Approx(1 - 0.8 * 0.5));
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

TEST_CASE("A step has the sequences of the newest stage of the ramp, or those of the job") {
  InnerSpec inner;
  inner.batch_sequences = 32;
  CHECK(BatchSequences(inner, 0) == 32);
  inner.batch_ramp = {{0, 4}, {100, 16}, {250, 32}};
  CHECK(BatchSequences(inner, 0) == 4);
  CHECK(BatchSequences(inner, 99) == 4);
  CHECK(BatchSequences(inner, 100) == 16);
  CHECK(BatchSequences(inner, 5000) == 32);
}

}  // namespace
}  // namespace atl
