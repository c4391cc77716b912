#include "worker/profiler/hockney.h"

#include <catch2/catch.hpp>
#include <cmath>

#include "common/rng.h"

namespace atl::worker {
namespace {

TEST_CASE("a link's latency and bandwidth come out of undisturbed times exactly") {
  std::vector<TransferTime> times;
  for (const int64_t bytes : {1'000, 10'000, 100'000, 1'000'000}) {
    times.push_back({bytes, 20e-3 + static_cast<double>(bytes) / 12.5e6});
  }
  const auto fit = FitHockney(times);
  REQUIRE(fit.ok());
  CHECK(fit->latency_s == Approx(20e-3).epsilon(1e-9));
  CHECK(fit->bytes_per_s == Approx(12.5e6).epsilon(1e-9));
  CHECK(fit->residual_ratio < 1e-9);
}

TEST_CASE("what slows single messages down does not matter while one of a size gets through") {
  Rng rng(3);
  std::vector<TransferTime> times;
  for (const int64_t bytes : {1'000, 30'000, 300'000, 3'000'000}) {
    const double quick = 1e-3 + static_cast<double>(bytes) / 1e8;
    times.push_back({bytes, quick});
    for (int i = 0; i < 5; ++i) times.push_back({bytes, quick * (1 + 5 * rng.Uniform())});
  }
  const auto fit = FitHockney(times);
  REQUIRE(fit.ok());
  CHECK(fit->latency_s == Approx(1e-3).epsilon(1e-6));
  CHECK(fit->bytes_per_s == Approx(1e8).epsilon(1e-6));
}

TEST_CASE("times_by_size_are_the_quickest_of_each_without_the_way_back_and_rise") {
  const std::vector<TransferTime> times = {{1'000'000, 30e-3}, {1'000'000, 28e-3}, {125'000, 9e-3},
                                           {15'625, 9.5e-3},   {1'024, 8e-3},      {0, 7e-3},
                                           {16, 2e-3}};
  const std::vector<MessageTime> expected = {
      {1'024, 5'000'000}, {125'000, 6'000'000}, {1'000'000, 25'000'000}};
  CHECK(TimesBySize(times, 3e-3, 3e-3) == expected);  // 15,625 bytes took no less than 125,000
  std::vector<TransferTime> many;
  for (int size = 1; size <= 100; ++size) many.push_back({size * 1000, size * 1e-3});
  const std::vector<MessageTime> largest = TimesBySize(many, 0, 0);
  REQUIRE(largest.size() == kMessageTimesMax);
  CHECK(largest.back().bytes == 100'000);
}

TEST_CASE("the residual says how far off the line is") {
  // A step of 10% in the middle: no line meets all four.
  const auto fit = FitHockney({{0, 1e-3}, {100'000, 2.2e-3}, {200'000, 3e-3}, {300'000, 4e-3}});
  REQUIRE(fit.ok());
  CHECK(fit->residual_ratio > 0.02);
  CHECK(fit->residual_ratio < 0.1);
}

TEST_CASE("a line through measurements that would need a negative latency starts at nothing") {
  const auto fit = FitHockney({{1'000, 1e-6}, {2'000, 3e-6}, {4'000, 7e-6}});
  REQUIRE(fit.ok());
  CHECK(fit->latency_s == 0);
  CHECK(fit->bytes_per_s > 0);
}

TEST_CASE("where size does not matter the bandwidth is at least the largest message's") {
  const auto fit = FitHockney({{1'000, 2e-3}, {2'000, 1e-3}, {4'000, 0.5e-3}});
  REQUIRE(fit.ok());
  CHECK(fit->bytes_per_s == Approx(8e6));
  CHECK(fit->latency_s == 0);
}

TEST_CASE("no fit without two sizes") {
  CHECK_FALSE(FitHockney({}).ok());
  CHECK_FALSE(FitHockney({{1'000, 1e-3}, {1'000, 2e-3}}).ok());
  CHECK_FALSE(FitHockney({{1'000, 0}, {2'000, -1}, {3'000, NAN}}).ok());
}

}  // namespace
}  // namespace atl::worker
