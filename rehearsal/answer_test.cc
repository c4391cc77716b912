#include "rehearsal/answer.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <numeric>

#include "rehearsal/testing/small_scene.h"

namespace atl::rehearsal {
namespace {

TEST_CASE("quantiles lie between neighbours") {
  const Spread spread = GetSpread({4, 1, 2, 3, 5});
  CHECK(spread.low == Approx(1.2));
  CHECK(spread.median == Approx(3));
  CHECK(spread.high == Approx(4.8));
}

TEST_CASE("a run that does not finish counts as later than all") {
  const Spread spread = GetSpread({1, 2, INFINITY});
  CHECK(spread.median == Approx(2));
  CHECK(std::isinf(spread.high));
  CHECK(std::isinf(GetSpread({INFINITY, INFINITY}).low));
}

TEST_CASE("a difference counts when it is beyond chance") {
  const auto answer = [](std::vector<double> seconds) {
    Answer made;
    for (const double s : seconds) {
      RunResult& run = made.runs.emplace_back();
      run.took = FromSeconds(s);
      run.tokens = 1000;
    }
    return made;
  };
  const Difference sure = Compare(answer({100, 110, 90}), answer({121, 131, 111}));
  CHECK(sure.share > 0.19);
  CHECK(sure.beyond_noise);
  CHECK_FALSE(Compare(answer({100, 110, 90}), answer({90, 130, 85})).beyond_noise);
  CHECK_FALSE(Compare(answer({100}), answer({200})).beyond_noise);
}

TEST_CASE("no run beats the bound, and shares add up to 1") {
  const Scene scene = testing::MakeSmallScene(testing::MakeSpec(20'000), 2, 2);
  const auto failures = ParseFailures(
      "[[failures]]\nof = \"a100-80\"\nmtbf_hours = 2\nrepair = \"10 min\"\n", "f.toml");
  REQUIRE(failures.ok());
  const auto answer = Rehearse(scene, *failures, std::chrono::hours(24), 1, 4);
  INFO(answer.status().message());
  REQUIRE(answer.ok());
  REQUIRE(answer->bound.finished);
  CHECK(answer->finished == 4);
  for (const RunResult& run : answer->runs) CHECK(run.took > answer->bound.took);
  CHECK(std::accumulate(answer->shares.begin(), answer->shares.end(), 0.0) == Approx(1));
  CHECK(answer->dearest.size() == kDearest);
  CHECK(answer->goodput.high < answer->bound.goodput());
}

TEST_CASE("no run whose links choose the rounds beats the bound") {
  Scene scene = testing::MakeSmallScene(testing::MakeSpec(20'000), 2, 2);
  scene.spec.outer.steps_per_round = 0;
  const auto answer = Rehearse(scene, Failures(), std::chrono::hours(240), 1, 1);
  INFO(answer.status().message());
  REQUIRE(answer.ok());
  REQUIRE(answer->bound.finished);
  REQUIRE(answer->finished == 1);
  CHECK(answer->runs[0].took >= answer->bound.took);
  CHECK(answer->bound.rounds < answer->runs[0].rounds);
}

}  // namespace
}  // namespace atl::rehearsal
