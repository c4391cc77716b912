#include "common/protocol/round_length.h"

#include <catch2/catch.hpp>

namespace atl {
namespace {

RoundTimes Times(double exchange_s, double spread, bool overlap) {
  return {exchange_s, exchange_s / spread, exchange_s * spread, /*step_s=*/0.1, overlap, 1};
}

TEST_CASE("a_round_has_the_fewest_steps_that_keep_exchanges_from_costing_time") {
  CHECK(ComputeRoundSteps(Times(0.02, 1, false)) == 4);  // 5% of 0.4 s
  CHECK(ComputeRoundSteps(Times(0, 1, false)) == 1);
  CHECK(ComputeRoundSteps(Times(0.02, 1, true)) == 2);
  CHECK(ComputeRoundSteps(Times(1, 1, true)) == 40);
  CHECK(ComputeRoundSteps(Times(1e300, 1, true)) == kStepsPerRoundMax);
}

TEST_CASE("the_slowest_island_makes_a_step_in_every_round") {
  RoundTimes times = Times(0.001, 1, true);
  times.least_steps = 4;
  CHECK(ComputeRoundSteps(times) == 4);
}

TEST_CASE("steps_change_when_measured_times_surely_call_for_it") {
  CHECK(FollowRoundTimes(40, Times(1, 1.5, true)) == 40);
  CHECK(FollowRoundTimes(40, Times(1.4, 1.5, true)) == 40);  // may be 0.93 s
  CHECK(FollowRoundTimes(40, Times(2, 1.5, true)) == 80);
  CHECK(FollowRoundTimes(40, Times(0.5, 1.5, true)) == 20);
  CHECK(FollowRoundTimes(40, Times(1.2, 1.01, true)) == 40);  // by less than a quarter
  CHECK(FollowRoundTimes(40, Times(0.1, 10, true)) == 40);    // one sample says little
}

TEST_CASE("pushes_are_classed_by_doublings_of_their_steps") {
  CHECK(ComputeLengthClass(0) == 0);
  CHECK(ComputeLengthClass(1) == 0);
  CHECK(ComputeLengthClass(2) == 1);
  CHECK(ComputeLengthClass(3) == 1);
  CHECK(ComputeLengthClass(64) == 6);
  CHECK(ComputeLengthClass(int64_t{1} << 40) == kLengthClasses - 1);
}

}  // namespace
}  // namespace atl
