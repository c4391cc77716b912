#include "common/protocol/learning_rate.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace atl {

namespace {

// The mean of more islands' steps is less noisy, and allows for larger ones.
double Scale(RateScaling scaling, int64_t islands) {
  constexpr double kPower = 0.3, kMost = 2;
  if (scaling == RateScaling::kNone) return 1;
  return std::min(std::pow(static_cast<double>(std::max<int64_t>(islands, 1)), kPower), kMost);
}

// Returns the share of the way from the highest rate to the last one at a share of the decay's
// tokens.
double Fallen(DecayShape shape, double share) {
  switch (shape) {
    case DecayShape::kLinear:
      return share;
    case DecayShape::kCosine:
      return 0.5 * (1 - std::cos(std::numbers::pi * share));
    case DecayShape::kSqrt:
      break;
  }
  return std::sqrt(share);
}

struct Decay {
  double fraction = 0;  // of the job's tokens, its last
  DecayShape shape = DecayShape::kLinear;
};

Decay FindDecay(const InnerSpec& inner) {
  switch (inner.schedule) {
    case RateSchedule::kCosine:
      return {1 - inner.warmup_fraction, DecayShape::kCosine};
    case RateSchedule::kLinear:
      return {1 - inner.warmup_fraction, DecayShape::kLinear};
    case RateSchedule::kConstant:
      return {};
    case RateSchedule::kWsd:
      break;
  }
  return {inner.decay_fraction, inner.decay_shape};
}

}  // namespace

double LearningRate(const InnerSpec& inner, int64_t train_tokens, int64_t tokens, int64_t islands) {
  const double highest = inner.learning_rate * Scale(inner.learning_rate_scaling, islands);
  const double total = static_cast<double>(std::max<int64_t>(train_tokens, 1));
  const double done = std::clamp(static_cast<double>(tokens), 0.0, total);
  const double warmup = inner.warmup_fraction * total;
  if (done < warmup) return highest * done / warmup;
  const auto [fraction, shape] = FindDecay(inner);
  if (fraction <= 0) return highest;
  const double last = highest * inner.final_learning_rate_ratio;
  const double share = std::clamp((done / total - (1 - fraction)) / fraction, 0.0, 1.0);
  return highest - (highest - last) * Fallen(shape, share);
}

int64_t BatchSequences(const InnerSpec& inner, int64_t tokens) {
  int64_t sequences = inner.batch_sequences;
  for (const BatchStage& stage : inner.batch_ramp) {
    if (stage.tokens <= tokens) sequences = stage.sequences;
  }
  return sequences;
}

}  // namespace atl
