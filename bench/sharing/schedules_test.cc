#include "bench/sharing/schedules.h"

#include <catch2/catch.hpp>

namespace atl::bench {
namespace {

TEST_CASE("equal_jobs_are_best_one_after_the_other") {
  const SharedCase c{4, {{0, 40, 1, 4, 1}, {0, 40, 1, 4, 1}, {0, 40, 1, 4, 1}}};
  CHECK(WeightedTime(c, EndBest(c)) == Approx(10 + 20 + 30));
  CHECK(Makespan(c, EndBest(c)) == Approx(LeastMakespan(c)));
}

TEST_CASE("a_short_job_is_best_first_by_weight_and_a_late_one_takes_over") {
  SharedCase c{2, {{0, 100, 1, 2, 1}, {10, 10, 1, 2, 1}}};
  CHECK(EndBest(c) == Ends{55, 15});
  c.jobs[0].weight = 100;
  CHECK(EndBest(c) == Ends{50, 55});
}

TEST_CASE("a_job_waits_for_all_workers_that_it_needs_and_uses_no_more_than_it_can") {
  const SharedCase c{4, {{0, 30, 1, 3, 1}, {0, 40, 4, 4, 1}, {0, 5, 1, 1, 1}}};
  CHECK(EndBest(c) == Ends{10, 20, 5});
  CHECK(LeastMakespan(c) == Approx(75.0 / 4));
}

TEST_CASE("workers_are_best_divided_where_one_job_cannot_use_them_all") {
  const SharedCase c{4, {{0, 20, 1, 2, 1}, {0, 30, 1, 4, 1}}};
  CHECK(EndBest(c) == Ends{10, 12.5});
}

}  // namespace
}  // namespace atl::bench
