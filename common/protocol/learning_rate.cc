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

}  // namespace

double LearningRate(const InnerSpec& inner, int64_t train_tokens, int64_t tokens, int64_t islands) {
  const double highest = inner.learning_rate * Scale(inner.learning_rate_scaling, islands);
  const double total = static_cast<double>(std::max<int64_t>(train_tokens, 1));
  const double done = std::clamp(static_cast<double>(tokens), 0.0, total);
  const double warmup = inner.warmup_fraction * total;
  if (done < warmup) return highest * done / warmup;
  const double last = highest * inner.final_learning_rate_ratio;
  if (total <= warmup) return highest;
  const double fraction = (done - warmup) / (total - warmup);
  return last + (highest - last) * 0.5 * (1 + std::cos(std::numbers::pi * fraction));
}

}  // namespace atl
