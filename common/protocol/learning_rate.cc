#include "common/protocol/learning_rate.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace atl {

double LearningRate(const InnerSpec& inner, int64_t train_tokens, int64_t tokens) {
  const double total = static_cast<double>(std::max<int64_t>(train_tokens, 1));
  const double done = std::clamp(static_cast<double>(tokens), 0.0, total);
  const double warmup = inner.warmup_fraction * total;
  if (done < warmup) return inner.learning_rate * done / warmup;
  const double last = inner.learning_rate * inner.final_learning_rate_ratio;
  if (total <= warmup) return inner.learning_rate;
  const double fraction = (done - warmup) / (total - warmup);
  return last + (inner.learning_rate - last) * 0.5 * (1 + std::cos(std::numbers::pi * fraction));
}

}  // namespace atl
