// The loss of direct preference optimisation (Rafailov et al. 2023), with label smoothing as in
// Mitchell 2023. Pure.

#ifndef ATOLL_WORKER_PIPELINE_PREFERENCE_H_
#define ATOLL_WORKER_PIPELINE_PREFERENCE_H_

#include <algorithm>
#include <cmath>

namespace atl::worker {

struct DpoOptions {
  double beta = 0.1;
  double label_smoothing = 0;  // below 0.5

  bool operator==(const DpoOptions&) const = default;
};

struct PreferenceLoss {
  double nats = 0;
  double slope = 0;  // of the margin
  bool prefers_chosen = false;
};

// -log sigmoid(-x), without overflow.
inline double SoftPlus(double x) { return std::max(x, 0.0) + std::log1p(std::exp(-std::abs(x))); }

// `margin`: how much more the log-probability of the chosen answer has gained against the
// reference's than that of the rejected one, in nats.
inline PreferenceLoss ComputePreference(const DpoOptions& options, double margin) {
  const double z = options.beta * margin, smoothing = options.label_smoothing;
  const double wrong = std::exp(-SoftPlus(z));  // sigmoid(-z)
  return {(1 - smoothing) * SoftPlus(-z) + smoothing * SoftPlus(z),
          options.beta * (smoothing - wrong), margin > 0};
}

}  // namespace atl::worker

#endif  // ATOLL_WORKER_PIPELINE_PREFERENCE_H_
