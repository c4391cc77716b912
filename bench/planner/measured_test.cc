#include "bench/planner/measured.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>

namespace atl::bench {
namespace {

double Spread(const MeasuredErrors& errors) {
  double least = 1, most = -1;
  for (const auto& [stages, bias] : errors.step_bias) {
    least = std::min(least, bias);
    most = std::max(most, bias);
  }
  return most - least;
}

TEST_CASE("steps and memory of published runs are predicted as closely as their planner does") {
  const MeasuredErrors errors = CompareMeasured(SailorOpt(), /*print=*/false);
  CHECK(errors.step <= 0.06);
  CHECK(errors.memory <= 0.08);
  CHECK(Spread(errors) <= 0.05);
}

TEST_CASE("the same runtime and nodes are predicted with another model") {
  const MeasuredErrors errors = CompareMeasured(SailorNeo(), /*print=*/false);
  CHECK(errors.step <= 0.08);
  CHECK(errors.memory <= 0.08);
}

TEST_CASE("deep pipelines of that runtime are predicted too short if it is not described") {
  MeasuredSet set = SailorOpt();
  set.profile.clear_runtime();
  CHECK(CompareMeasured(set, /*print=*/false).step_bias.at(4) < -0.08);
}

}  // namespace
}  // namespace atl::bench
