#include "common/net/tensor/pull_rates.h"

#include <catch2/catch.hpp>

namespace atl {
namespace {

constexpr int64_t kMiB = int64_t{1} << 20;

Instant At(double seconds) { return Instant() + FromSeconds(seconds); }

// A pull of so many chunks of 1 MiB, one every `step` seconds.
void Pull(PullRates& rates, const std::string& server, double begin, double step, int chunks) {
  rates.Opened(server);
  for (int i = 0; i < chunks; ++i) rates.Received(server, kMiB, At(begin + step * i));
  rates.Ended(server);
}

TEST_CASE("a_pull_counts_from_its_first_chunk_on") {
  PullRates rates;
  Pull(rates, "near", 5, 0.01, 11);
  Pull(rates, "far", 5, 0.1, 11);
  CHECK(rates.rates().at("near") == Approx(100 * kMiB));
  CHECK(rates.rates().at("far") == Approx(10 * kMiB));
}

TEST_CASE("what_is_too_short_to_measure_shows_nothing") {
  PullRates rates;
  Pull(rates, "one chunk", 0, 1, 1);
  rates.Opened("not begun");
  CHECK(rates.rates().empty());
}

TEST_CASE("time_without_a_pull_does_not_count") {
  PullRates rates;
  Pull(rates, "s", 0, 0.01, 3);
  Pull(rates, "s", 100, 0.01, 3);
  CHECK(rates.rates().at("s") == Approx(100 * kMiB));
}

TEST_CASE("pulls_at_a_time_are_one_window") {
  PullRates rates;
  rates.Opened("s");
  rates.Opened("s");
  for (int i = 0; i < 5; ++i) rates.Received("s", kMiB, At(0.1 * i));
  rates.Ended("s");
  CHECK(rates.rates().empty());
  for (int i = 5; i < 9; ++i) rates.Received("s", kMiB, At(0.1 * i));
  rates.Ended("s");
  CHECK(rates.rates().at("s") == Approx(10 * kMiB));
}

TEST_CASE("the_quickest_of_the_last_samples_counts") {
  PullRates rates;
  Pull(rates, "s", 0, 0.01, 3);
  Pull(rates, "s", 1, 0.1, 3);
  CHECK(rates.rates().at("s") == Approx(100 * kMiB));
  for (size_t i = 0; i < PullRates::kSamples; ++i) Pull(rates, "s", 2.0 + i, 0.1, 3);
  CHECK(rates.rates().at("s") == Approx(10 * kMiB));
}

}  // namespace
}  // namespace atl
