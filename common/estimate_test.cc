#include "common/estimate.h"

#include <catch2/catch.hpp>

namespace atl {
namespace {

Estimate Of(std::initializer_list<double> samples) {
  Estimate estimate;
  for (const double sample : samples) estimate.Add(sample);
  return estimate;
}

TEST_CASE("the_median_follows_a_change_after_three_samples_and_no_burst_of_two") {
  CHECK(Of({}).median() == 0);
  CHECK(Of({10, 11, 9, 1, 1.1}).median() == 9);
  CHECK(Of({10, 11, 9, 1, 1.1, 0.9}).median() == 1.1);
}

TEST_CASE("a_value_that_is_said_again_is_no_new_sample") {
  const Estimate estimate = Of({10, 1, 1, 1, 1, 1, 1});
  CHECK(estimate.samples() == 2);
  CHECK(estimate.median() == 5.5);
}

TEST_CASE("the_spread_is_a_ratio_and_grows_with_the_noise") {
  CHECK(Of({10, 10, 10, 10.1, 10.2}).spread() == 10);  // three samples
  CHECK(Of({10, 10.1, 9.9, 10.05, 9.95}).spread() < 1.05);
  const double spread = Of({1, 10, 100, 3, 30}).spread();
  CHECK(spread > 3);
  CHECK(spread == Approx(Of({1000, 10000, 100000, 3000, 30000}).spread()));
}

TEST_CASE("a_change_is_worth_what_it_costs_while_it_lasts") {
  CHECK(IsWorthChanging({2, 10, 6}));
  CHECK_FALSE(IsWorthChanging({2, 10, 5}));
  CHECK_FALSE(IsWorthChanging({0, 0, 100}));
}

}  // namespace
}  // namespace atl
