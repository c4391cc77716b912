#include "common/protocol/round_length.h"

#include <catch2/catch.hpp>
#include <cmath>

#include "common/estimate.h"
#include "common/rng.h"

namespace atl {
namespace {

RoundTimes Times(double exchange_s, double spread, bool overlap) {
  return {exchange_s, exchange_s / spread, exchange_s * spread, /*step_s=*/0.1, overlap};
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
  times.slowest_over_fastest = 0.25;
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

TEST_CASE("few_steps_stay_within_a_quarter_of_what_rounds_up_to_them") {
  // An exchange of 0.025 s needs one step.
  const auto follow = [](int64_t steps, double wanted) {
    return FollowRoundTimes(steps, Times(0.025 * wanted, 1.01, true));
  };
  CHECK(follow(2, 2.4) == 2);
  CHECK(follow(2, 2.6) == 3);
  CHECK(follow(3, 3.6) == 3);
  CHECK(follow(3, 1.7) == 3);
  CHECK(follow(3, 1.5) == 2);
  CHECK(follow(2, 0.1) == 2);
  CHECK(FollowRoundTimes(1, Times(0.006, 1.01, false)) == 1);
  CHECK(FollowRoundTimes(1, Times(0.007, 1.01, false)) == 2);
}

TEST_CASE("speeds_that_are_measured_a_little_apart_change_no_steps") {
  RoundTimes times = Times(0.001, 1.01, true);
  const int64_t steps = GENERATE(3, 4);  // in which the slowest makes one, at 0.28 of the speed
  for (const double speed : {0.27, 0.28, 0.3}) {
    times.slowest_over_fastest = speed;
    CHECK(FollowRoundTimes(steps, times) == steps);
  }
  times.slowest_over_fastest = 0.1;
  CHECK(FollowRoundTimes(steps, times) == 10);
  times.slowest_over_fastest = 1;
  CHECK(FollowRoundTimes(steps, times) == 2);
}

// How often the steps change in an hour of measurements that scatter so much about what requires
// `wanted` steps.
int CountChanges(double wanted, double scatter, int64_t* steps) {
  Rng rng(7);
  RoundLength length;
  Estimate exchanges, commits;
  int changes = 0;
  *steps = kFirstRoundSteps;
  for (int sample = 0; sample < 1800; ++sample) {
    exchanges.Add(0.0225 * wanted * std::exp(scatter * rng.Normal()));
    commits.Add(0.0025 * wanted * std::exp(scatter * rng.Normal()));
    RoundTimes times;
    for (const Estimate* each : {&exchanges, &commits}) {
      times.exchange_s += each->median();
      times.exchange_least_s += each->median() / each->spread();
      times.exchange_most_s += each->median() * each->spread();
    }
    times.step_s = 0.1 * std::exp(0.03 * rng.Normal());
    times.overlap = true;
    const Instant now{sample * RoundLength::kSampleEvery};
    const int64_t next = length.Follow(now, *steps, times);
    changes += next != *steps ? 1 : 0;
    *steps = next;
  }
  return changes;
}

TEST_CASE("steps_change_at_most_twice_in_an_hour_however_much_measurements_scatter") {
  for (const double scatter : {0.05, 0.15, 0.3, 0.5}) {
    for (const double wanted : {0.5, 1.9, 2.05, 2.45, 3.0, 5.0, 20.0, 100.0}) {
      INFO(wanted << " steps, scatter " << scatter);
      int64_t steps = 0;
      CHECK(CountChanges(wanted, scatter, &steps) <= 2);
      CHECK(static_cast<double>(steps) > wanted / 1.5);
      CHECK(static_cast<double>(steps) < std::max(2.5, 1.5 * wanted + 1));
    }
  }
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
