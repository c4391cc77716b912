#include "coordinator/core/rounds/merge.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "common/check.h"
#include "common/protocol/outer_optimizer.h"

namespace atl {
namespace {

// Coefficients of the k pseudo-gradients and of the reference slot.
using Coefficients = std::vector<double>;

// c^T G d; what has a coefficient of 0 does not enter, be it no number.
double Product(const std::vector<double>& gram, const Coefficients& c, const Coefficients& d) {
  const size_t n = c.size();
  double sum = 0;
  for (size_t i = 0; i < n; ++i) {
    for (size_t j = 0; j < n; ++j) {
      const double both = c[i] * d[j];
      if (both != 0) sum += both * gram[i * n + j];
    }
  }
  return sum;
}

double Norm(const std::vector<double>& gram, const Coefficients& c) {
  return std::sqrt(std::max(0.0, Product(gram, c, c)));
}

Coefficients ReferenceAlone(size_t k) {
  Coefficients c(k + 1, 0);
  c[k] = 1;
  return c;
}

// (sum w |v| / sum w) times the direction of sum w v/|v|; `mean` where there is no direction.
Coefficients Radial(const std::vector<double>& gram, const Coefficients& mean,
                    const Coefficients& weights) {
  const size_t n = mean.size();
  Coefficients directions(n, 0);
  double norms = 0, total = 0;
  for (size_t i = 0; i + 1 < n; ++i) {
    if (weights[i] == 0) continue;
    const double norm = std::sqrt(gram[i * n + i]);
    if (!(norm > 0)) return mean;
    directions[i] = weights[i] / norm;
    norms += weights[i] * norm;
    total += weights[i];
  }
  const double length = Norm(gram, directions);
  if (!(length > 0)) return mean;
  // Clipped candidates keep the mean's sum of weights.
  const double sum = std::accumulate(mean.begin(), mean.end(), 0.0);
  for (double& x : directions) x *= sum * norms / total / length;
  return directions;
}

double MeanCosine(const std::vector<double>& total, const std::vector<double>& weights, size_t n) {
  double sum = 0;
  int pairs = 0;
  for (size_t i = 0; i < weights.size(); ++i) {
    for (size_t j = i + 1; j < weights.size(); ++j) {
      const double norms = std::sqrt(total[i * n + i] * total[j * n + j]);
      if (weights[i] == 0 || weights[j] == 0 || !(norms > 0)) continue;
      sum += total[i * n + j] / norms;
      ++pairs;
    }
  }
  return pairs == 0 ? 0 : sum / pairs;
}

// Sets the learning rate, and what follows from it.
void SetRate(const MergeInput& input, double square, double along_reference, double reference,
             MergedRound& round) {
  const OuterSpec& outer = input.outer;
  RoundHealth& health = round.health;
  round.step.learning_rate = outer.learning_rate;
  const OuterOptimizerInfo& optimizer = GetOuterOptimizer(outer);
  const bool is_plain = optimizer.slots.empty();
  if (is_plain || optimizer.single_pushes) {
    const double norms = std::sqrt(square) * reference;
    if (norms > 0) health.rho = along_reference / norms;
    if (is_plain) health.gain = outer.learning_rate;
    return;
  }
  // The momentum's part in the new pseudo-gradient, x, is rho / (1 - mu rho) in the long run.
  const double x = square > 0 ? along_reference / square : 0;
  const double scale = 1 + outer.momentum * x;
  health.rho = scale > 0 ? std::clamp(x / scale, -1.0, 1.0) : -1;
  if (!optimizer.parameters.empty()) {  // a gain to reach
    double rho = health.rho;
    for (const double past : input.past_rho) rho += past;
    rho /= static_cast<double>(1 + input.past_rho.size());
    round.step.learning_rate =
        OuterParameterValue(outer, "gain_target") / NesterovGain(outer.momentum, rho);
  }
  health.gain = round.step.learning_rate * NesterovGain(outer.momentum, health.rho);
}

}  // namespace

double NesterovGain(double momentum, double rho) { return 1 + momentum / (1 - momentum * rho); }

MergedRound MergeRound(const MergeInput& input) {
  const size_t k = input.candidates.size(), n = k + 1;
  MergedRound round;
  Coefficients mean(n, 0), by_quality(n, 0);
  double weights = 0;
  for (size_t i = 0; i < k; ++i) {
    const MergeCandidate& candidate = input.candidates[i];
    mean[i] = candidate.weight;
    by_quality[i] = candidate.weight * candidate.quality;
    weights += candidate.weight;
    round.health.staleness += candidate.weight * static_cast<double>(candidate.age);
  }
  ATOLL_CHECK(weights > 0);
  round.health.staleness /= weights;
  const bool by_mean = !MergesByLayer(input.outer);
  const Coefficients reference = ReferenceAlone(k);
  std::vector<double> total(n * n, 0);
  double square = 0, along_reference = 0, reference_square = 0;
  for (const LayerGram& layer : input.layers) {
    ATOLL_CHECK(layer.values.size() == n * n);
    Coefficients c = mean;
    if (!by_mean && !input.plain_layers.contains(layer.layer)) {
      c = Radial(layer.values, mean, by_quality);
    }
    if (!by_mean) round.step.layers.push_back({layer.layer, {c.begin(), c.end() - 1}});
    square += Product(layer.values, c, c);
    along_reference += Product(layer.values, c, reference);
    reference_square += Product(layer.values, reference, reference);
    for (size_t i = 0; i < n * n; ++i) total[i] += layer.values[i];
  }
  square = std::max(0.0, square);
  if (!std::isfinite(along_reference) || !std::isfinite(reference_square)) {
    along_reference = reference_square = 0;  // a momentum that is no number compares with nothing
  }
  round.norm = std::sqrt(square);
  const double most = input.outer.clip_norm;
  if (most > 0 && round.norm > most) round.clip_scale = most / round.norm;
  round.weights.assign(mean.begin(), mean.end() - 1);
  for (double& weight : round.weights) weight *= round.clip_scale;
  for (LayerStep& layer : round.step.layers) {
    for (double& weight : layer.weights) weight *= round.clip_scale;
  }
  round.health.cosine = MeanCosine(total, round.weights, n);
  SetRate(input, square * round.clip_scale * round.clip_scale, along_reference * round.clip_scale,
          std::sqrt(std::max(0.0, reference_square)), round);
  return round;
}

}  // namespace atl
