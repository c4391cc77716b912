#include "coordinator/core/rounds/merge.h"

#include <catch2/catch.hpp>
#include <cmath>

namespace atl {
namespace {

using Vector = std::vector<double>;

double Dot(const Vector& a, const Vector& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

// One layer's pseudo-gradients and momentum, as vectors; the rules below are computed from them
// alone.
struct Layer {
  std::vector<Vector> deltas;
  Vector momentum;

  LayerGram Gram(int32_t layer) const {
    std::vector<Vector> all = deltas;
    all.push_back(momentum);
    LayerGram gram{layer, {}};
    for (const Vector& a : all) {
      for (const Vector& b : all) gram.values.push_back(Dot(a, b));
    }
    return gram;
  }
  Vector Merged(const MergedRound& round, size_t index) const {
    Vector sum(momentum.size(), 0);
    const LayerStep* step = index < round.step.layers.size() ? &round.step.layers[index] : nullptr;
    for (size_t d = 0; d < deltas.size(); ++d) {
      const double weight = step != nullptr ? step->weights[d] : round.weights[d];
      for (size_t i = 0; i < sum.size(); ++i) sum[i] += weight * deltas[d][i];
    }
    return sum;
  }
};

OuterSpec Spec(const std::string& optimizer, const std::string& merge) {
  OuterSpec spec;
  spec.optimizer = optimizer;
  spec.merge = merge;
  spec.clip_norm = 0;
  return spec;
}

MergedRound Run(const OuterSpec& spec, const std::vector<Layer>& layers,
                std::vector<MergeCandidate> candidates) {
  std::vector<LayerGram> grams;
  for (size_t i = 0; i < layers.size(); ++i) grams.push_back(layers[i].Gram(static_cast<int>(i)));
  return MergeRound({spec, std::move(candidates), grams, {}, {}});
}

double Norm(const Vector& v) { return std::sqrt(Dot(v, v)); }

TEST_CASE("an_average_longer_than_the_clip_norm_is_scaled_down_to_it") {
  OuterSpec spec = Spec("nesterov", "mean");
  spec.clip_norm = 1;
  const Layer layer{{{3, 1}, {2, -5}}, {0, 0}};
  const MergedRound round = Run(spec, {layer}, {{2.0 / 3}, {1.0 / 3}});
  CHECK(Norm(layer.Merged(round, 0)) == Approx(1));
  CHECK(round.clip_scale == Approx(1 / round.norm));
  CHECK(round.step.layers.empty());
  CHECK(round.health.cosine == Approx(1 / std::sqrt(10.0 * 29)));
}

TEST_CASE("opposite_deltas_cancel_and_a_rejected_one_does_not_enter") {
  const MergedRound round =
      Run(Spec("nesterov", "mean"), {{{{3, 4}, {-3, -4}}, {0, 0}}}, {{0.5}, {0.5}});
  CHECK(round.norm == Approx(0).margin(1e-12));
  CHECK(round.clip_scale == 1);
  const double nan = std::nan("");
  const MergedRound other =
      Run(Spec("nesterov", "radial"), {{{{3, 4}, {nan, nan}}, {0, 0}}}, {{1}, {0}});
  CHECK(other.norm == Approx(5));
  CHECK(other.step.layers[0].weights[0] == Approx(1));
  CHECK(other.step.layers[0].weights[1] == 0);
}

TEST_CASE("radial_merges_norms_and_directions_apart_in_each_layer") {
  const std::vector<Layer> layers = {{{{3, 0}, {0, 1}}, {0, 0}}, {{{1, 1}, {2, 2}}, {0, 0}}};
  const MergedRound round = Run(Spec("nesterov", "radial"), layers, {{0.75, 10}, {0.25, 30}});
  // Tokens times tokens a step: both weigh the same.
  const Vector first = layers[0].Merged(round, 0), second = layers[1].Merged(round, 1);
  CHECK(Norm(first) == Approx(2));
  CHECK(first[0] == Approx(first[1]));
  CHECK(Norm(second) == Approx(1.5 * std::sqrt(2.0)));
  CHECK(round.norm == Approx(std::hypot(Norm(first), Norm(second))));
}

TEST_CASE("the_age_of_a_push_is_reported_and_weighs_nothing") {
  const Layer layer{{{3, 4}}, {0, 0}};
  const MergedRound round = Run(Spec("nesterov", "mean"), {layer}, {{1, 1, 2}});
  CHECK(round.weights[0] == 1);
  CHECK(round.health.staleness == 2);
}

TEST_CASE("rho_and_gain_are_those_of_the_pseudo_gradients_that_made_the_momentum") {
  // Successive ones with cosine rho, after many rounds: b = sum of mu^j D_j.
  const double mu = 0.8, rho = 0.4;
  OuterSpec spec = Spec("nesterov", "mean");
  spec.momentum = mu;
  spec.learning_rate = 0.7;
  const Layer layer{{{1, 0}}, {rho / (1 - mu * rho), 2}};
  const MergedRound round = Run(spec, {layer}, {{1}});
  CHECK(round.health.rho == Approx(rho));
  CHECK(round.health.gain == Approx(0.7 * (1 + mu / (1 - mu * rho))));
  // The step along D, as the optimizer makes it: D + mu b.
  CHECK(round.health.gain == Approx(0.7 * (1 + mu * (mu * layer.momentum[0] + 1))));
  spec.optimizer = "nesterov_gain";
  spec.parameters = "gain_target=1.2";
  const MergedRound controlled = Run(spec, {layer}, {{1}});
  CHECK(controlled.health.gain == Approx(1.2));
  CHECK(controlled.step.learning_rate == Approx(1.2 / NesterovGain(mu, rho)));
}

}  // namespace
}  // namespace atl
