#include "common/model/rope.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace atl {
namespace {

constexpr double kTurn = 2 * std::numbers::pi;

// Wavelengths that the original context holds many of stay, those that it holds few of are
// stretched, and those between are mixed.
double Llama3(double angle, const RopeScaling& s) {
  const double turns = static_cast<double>(s.original_positions) * angle / kTurn;
  if (turns > s.high_frequency_factor) return angle;
  if (turns < s.low_frequency_factor) return angle / s.factor;
  const double keep =
      (turns - s.low_frequency_factor) / (s.high_frequency_factor - s.low_frequency_factor);
  return (1 - keep) * angle / s.factor + keep * angle;
}

// The pair of channels that turns so often within the original context.
double PairOfTurns(double turns, const ModelConfig& c) {
  const auto positions = static_cast<double>(c.rope_scaling.original_positions);
  return static_cast<double>(c.head_dim()) * std::log(positions / (turns * kTurn)) /
         (2 * std::log(c.rope_theta));
}

void Yarn(const ModelConfig& c, std::vector<double>& angles) {
  const RopeScaling& s = c.rope_scaling;
  const double last = static_cast<double>(c.head_dim()) - 1;
  const double low = std::max(0.0, std::floor(PairOfTurns(s.beta_fast, c)));
  double high = std::min(last, std::ceil(PairOfTurns(s.beta_slow, c)));
  if (low == high) high += 0.001;
  for (size_t i = 0; i < angles.size(); ++i) {
    const double stretch = std::clamp((static_cast<double>(i) - low) / (high - low), 0.0, 1.0);
    angles[i] = angles[i] / s.factor * stretch + angles[i] * (1 - stretch);
  }
}

// The theta whose slowest pair turns as little over `positions` as the plain one does over the
// original ones.
double DynamicTheta(const ModelConfig& c, int64_t positions) {
  const RopeScaling& s = c.rope_scaling;
  const auto original = static_cast<double>(s.original_positions);
  const double reach = std::max(static_cast<double>(positions), original) / original;
  const auto channels = static_cast<double>(c.head_dim());
  return c.rope_theta * std::pow(s.factor * reach - (s.factor - 1), channels / (channels - 2));
}

}  // namespace

RopeAngles ComputeRopeAngles(const ModelConfig& c, int64_t positions) {
  const int64_t half = c.head_dim() / 2;
  const RopeScaling& s = c.rope_scaling;
  RopeAngles rope;
  const bool dynamic = s.kind == RopeScaling::Kind::kDynamic && half > 1;
  const double theta = dynamic ? DynamicTheta(c, positions) : c.rope_theta;
  for (int64_t i = 0; i < half; ++i) {
    rope.per_position.push_back(
        std::pow(theta, -static_cast<double>(i) / static_cast<double>(half)));
  }
  switch (s.kind) {
    case RopeScaling::Kind::kNone:
    case RopeScaling::Kind::kDynamic:
      break;
    case RopeScaling::Kind::kLinear:
      for (double& angle : rope.per_position) angle /= s.factor;
      break;
    case RopeScaling::Kind::kLlama3:
      for (double& angle : rope.per_position) angle = Llama3(angle, s);
      break;
    case RopeScaling::Kind::kYarn:
      Yarn(c, rope.per_position);
      rope.length = s.attention_factor > 0 ? s.attention_factor : 0.1 * std::log(s.factor) + 1;
      break;
  }
  return rope;
}

std::vector<double> RopeTable(const ModelConfig& c, int64_t positions) {
  const RopeAngles rope = ComputeRopeAngles(c, positions);
  const size_t half = rope.per_position.size();
  std::vector<double> table(static_cast<size_t>(positions) * 2 * half);
  for (int64_t p = 0; p < positions; ++p) {
    double* row = table.data() + static_cast<size_t>(p) * 2 * half;
    for (size_t i = 0; i < half; ++i) {
      const double angle = static_cast<double>(p) * rope.per_position[i];
      row[i] = rope.length * std::cos(angle);
      row[half + i] = rope.length * std::sin(angle);
    }
  }
  return table;
}

}  // namespace atl
