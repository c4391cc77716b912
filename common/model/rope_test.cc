// Angles of published models, computed apart from this code by the formulas of transformers.

#include "common/model/rope.h"

#include <catch2/catch.hpp>
#include <map>

namespace atl {
namespace {

ModelConfig WithRope(double theta, const RopeScaling& scaling) {
  ModelConfig config;
  config.family = ModelFamily::kLlama;
  config.d_model = 4096;
  config.heads = config.kv_heads = 32;
  config.rope_theta = theta;
  config.rope_scaling = scaling;
  return config;
}

// Angles of some of the 64 pairs of channels, and a position of the table by them.
void RequireAngles(const ModelConfig& config, const std::map<size_t, double>& expected,
                   double length) {
  const RopeAngles angles = ComputeRopeAngles(config, 4);
  REQUIRE(angles.per_position.size() == 64);
  REQUIRE(angles.length == Approx(length).epsilon(1e-14));
  const std::vector<double> table = RopeTable(config, 4);
  for (const auto& [pair, angle] : expected) {
    CAPTURE(pair);
    CHECK(angles.per_position[pair] == Approx(angle).epsilon(1e-12));
    CHECK(table[3 * 128 + pair] == Approx(length * std::cos(3 * angle)).epsilon(1e-12));
    CHECK(table[3 * 128 + 64 + pair] == Approx(length * std::sin(3 * angle)).epsilon(1e-12));
  }
}

TEST_CASE("plain_and_linear_angles_fall_by_powers_of_theta") {
  RequireAngles(WithRope(10000, {}), {{0, 1}, {1, 0.8659643233600653}, {32, 0.01}}, 1);
  RequireAngles(WithRope(10000, {.kind = RopeScaling::Kind::kLinear, .factor = 2.5}),
                {{0, 0.4}, {1, 0.3463857293440261}, {32, 0.004}, {63, 4.619127938757833e-05}}, 1);
}

TEST_CASE("llama3_keeps_short_waves_stretches_long_ones_and_mixes_those_between") {
  RequireAngles(WithRope(500000, {.kind = RopeScaling::Kind::kLlama3,
                                  .factor = 8,
                                  .original_positions = 8192,
                                  .low_frequency_factor = 1,
                                  .high_frequency_factor = 4}),
                {{0, 1},
                 {28, 0.003211445994752591},
                 {29, 0.002166570763503359},
                 {31, 0.0008567514129196321},
                 {34, 0.0001785078127679964},
                 {35, 9.556212353964683e-05},
                 {63, 3.068925988914511e-07}},
                1);
}

TEST_CASE("yarn_ramps_between_pairs_of_32_turns_and_of_one") {
  const RopeScaling yarn{
      .kind = RopeScaling::Kind::kYarn, .factor = 4, .original_positions = 32768};
  const std::map<size_t, double> expected = {{0, 1},
                                             {23, 0.006978305848598663},
                                             {24, 0.005375321490790102},
                                             {31, 0.0008029597275452302},
                                             {39, 6.490394320837028e-05},
                                             {40, 4.445698525097307e-05},
                                             {63, 3.102344401879299e-07}};
  RequireAngles(WithRope(1e6, yarn), expected, 1.138629436111989);
  RopeScaling given = yarn;
  given.attention_factor = 0.75;
  RequireAngles(WithRope(1e6, given), expected, 0.75);
}

TEST_CASE("dynamic_angles_are_plain_within_the_original_positions_and_slower_beyond") {
  const ModelConfig config = WithRope(
      10000, {.kind = RopeScaling::Kind::kDynamic, .factor = 2, .original_positions = 2048});
  CHECK(ComputeRopeAngles(config, 2048).per_position ==
        ComputeRopeAngles(WithRope(10000, {}), 2048).per_position);
  // theta becomes 10000 * (2 * 4096 / 2048 - 1)^(128 / 126).
  const std::vector<double> beyond = ComputeRopeAngles(config, 4096).per_position;
  CHECK(beyond[0] == 1);
  CHECK(beyond[1] == Approx(0.8509942913412162).epsilon(1e-12));
  CHECK(beyond[63] == Approx(3.849273282298194e-05).epsilon(1e-12));
}

}  // namespace
}  // namespace atl
