#include "coordinator/core/rounds/robust_weights.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <functional>
#include <map>
#include <numeric>
#include <string>

#include "common/rng.h"

namespace atl {
namespace {

using Vector = std::vector<double>;

constexpr size_t kHonest = 4, kElements = 200;

double DotProduct(const Vector& a, const Vector& b) {
  return std::inner_product(a.begin(), a.end(), b.begin(), 0.0);
}

double Distance(const Vector& a, const Vector& b) {
  double square = 0;
  for (size_t i = 0; i < a.size(); ++i) square += (a[i] - b[i]) * (a[i] - b[i]);
  return std::sqrt(square);
}

// Pseudo-gradients of islands that train the same model: one direction, and as much noise.
std::vector<Vector> HonestPushes(uint64_t seed) {
  Rng rng(seed, 1);
  Vector common(kElements);
  for (double& x : common) x = rng.Uniform() - 0.5;
  std::vector<Vector> pushes(kHonest, common);
  for (Vector& push : pushes) {
    for (double& x : push) x += rng.Uniform() - 0.5;
  }
  return pushes;
}

Vector ComputeMean(const std::vector<Vector>& pushes) {
  Vector mean(kElements, 0);
  for (const Vector& push : pushes) {
    for (size_t i = 0; i < kElements; ++i) {
      mean[i] += push[i] / static_cast<double>(pushes.size());
    }
  }
  return mean;
}

struct Weighing {
  std::vector<RoundCandidate> candidates;
  std::vector<double> gram;
  RoundDecision decision;

  double weight(size_t i) const { return decision.verdicts[i].weight; }
  double WeightAt(const std::string& site) const {
    double sum = 0;
    for (size_t i = 0; i < candidates.size(); ++i) {
      if (candidates[i].site == site) sum += weight(i);
    }
    return sum;
  }
};

// `tokens`, one for each; all equal where there are none. A site for each.
Weighing Weigh(const OuterSpec& outer, const std::vector<Vector>& pushes,
               const std::vector<int64_t>& tokens = {},
               const std::vector<std::string>& sites = {}) {
  Weighing w;
  for (size_t i = 0; i < pushes.size(); ++i) {
    RoundCandidate candidate{{static_cast<IslandId>(i), 1, 1, 0}, tokens.empty() ? 100 : tokens[i]};
    candidate.site = sites.empty() ? "site-" + std::to_string(i) : sites[i];
    w.candidates.push_back(candidate);
    for (const Vector& other : pushes) w.gram.push_back(DotProduct(pushes[i], other));
  }
  std::map<IslandId, PenaltyState> penalties;
  w.decision = Decide(w.candidates, w.gram, outer.reject_outliers, penalties);
  WeighRobustly(outer, w.candidates, w.gram, w.decision);
  return w;
}

Vector Merged(const Weighing& weighing, const std::vector<Vector>& pushes) {
  Vector sum(kElements, 0);
  for (size_t d = 0; d < pushes.size(); ++d) {
    for (size_t i = 0; i < kElements; ++i) sum[i] += weighing.weight(d) * pushes[d][i];
  }
  return sum;
}

OuterSpec Merge(const std::string& merge, double max_share = 1) {
  OuterSpec outer;
  outer.merge = merge;
  outer.max_share = max_share;
  return outer;
}

Vector Times(double factor, Vector values) {
  for (double& x : values) x *= factor;
  return values;
}

TEST_CASE("the_geometric_median_stays_near_honest_pushes_whatever_one_of_five_sends") {
  const std::map<std::string, std::function<Vector(const Vector&)>> attacks = {
      {"sign flip", [](const Vector& mean) { return Times(-1, mean); }},
      {"scaled", [](const Vector& mean) { return Times(1000, mean); }},
      {"scaled and flipped", [](const Vector& mean) { return Times(-1000, mean); }},
      {"drifted by inner product", [](const Vector& mean) { return Times(-5, mean); }},
  };
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    const std::vector<Vector> honest = HonestPushes(seed);
    const Vector mean = ComputeMean(honest);
    double farthest = 0;
    for (const Vector& push : honest) farthest = std::max(farthest, Distance(push, mean));
    for (const auto& [name, attack] : attacks) {
      INFO(name << ", seed " << seed);
      std::vector<Vector> pushes = honest;
      pushes.push_back(attack(mean));
      const Vector median = Merged(Weigh(Merge("geometric_median"), pushes), pushes);
      CHECK(Distance(median, mean) < farthest);
      CHECK(DotProduct(median, mean) > 0.5 * DotProduct(mean, mean));
      // The mean without the rule of outliers is led astray: the attacks are ones.
      if (name == "sign flip") continue;
      OuterSpec plain = Merge("mean");
      plain.reject_outliers = false;
      const Vector averaged = Merged(Weigh(plain, pushes), pushes);
      CHECK(Distance(averaged, mean) > 1.5 * Distance(median, mean));
    }
  }
}

TEST_CASE("the_geometric_median_is_the_point_of_least_summed_distances") {
  const std::vector<Vector> pushes = HonestPushes(7);
  const std::vector<int64_t> tokens = {100, 300, 200, 250};
  const Weighing weighing = Weigh(Merge("geometric_median"), pushes, tokens);
  const Vector median = Merged(weighing, pushes);
  const auto sum_distances = [&](const Vector& at) {
    double sum = 0;
    for (size_t i = 0; i < pushes.size(); ++i) {
      sum += static_cast<double>(tokens[i]) * Distance(at, pushes[i]);
    }
    return sum;
  };
  const double least = sum_distances(median);
  for (size_t i = 0; i < kElements; ++i) {
    for (const double step : {-0.02, 0.02}) {
      Vector other = median;
      other[i] += step;
      CHECK(sum_distances(other) > least);
    }
  }
  CHECK(weighing.weight(0) + weighing.weight(1) + weighing.weight(2) + weighing.weight(3) ==
        Approx(1));
}

TEST_CASE("trimmed_norms_leave_no_push_longer_than_the_others_mean") {
  std::vector<Vector> pushes = HonestPushes(3);
  pushes.push_back(Times(1000, ComputeMean(pushes)));
  OuterSpec trimmed = Merge("trimmed_norms");
  trimmed.reject_outliers = false;
  const Weighing weighing = Weigh(trimmed, pushes);
  std::vector<double> lengths, parts;
  for (size_t i = 0; i < pushes.size(); ++i) {
    lengths.push_back(std::sqrt(DotProduct(pushes[i], pushes[i])));
    parts.push_back(weighing.weight(i) * lengths.back());
  }
  std::sort(lengths.begin(), lengths.end());
  const double mean = (lengths[1] + lengths[2] + lengths[3]) / 3;
  for (const double part : parts) CHECK(part <= 0.2 * mean * 1.0001);
  CHECK(parts.back() == Approx(0.2 * mean));
  // Two cannot outvote one.
  std::vector<Vector> two = HonestPushes(3);
  two.resize(2);
  CHECK(Weigh(Merge("trimmed_norms"), {two[0], Times(50, two[1])}).weight(1) == Approx(0.5));
}

TEST_CASE("no_site_has_more_than_its_most_of_a_round") {
  const std::vector<Vector> pushes = HonestPushes(5);
  // A site of two islands has 0.9 of the tokens.
  const Weighing w = Weigh(Merge("mean", 0.4), pushes, {450, 450, 75, 25}, {"a", "a", "b", "c"});
  CHECK(w.WeightAt("a") == Approx(0.4));
  CHECK(w.WeightAt("b") == Approx(0.4));  // 0.45 of what is left otherwise
  CHECK(w.WeightAt("c") == Approx(0.2));
  CHECK(w.weight(0) == Approx(w.weight(1)));
  // Too few sites: the step is smaller.
  const Weighing few = Weigh(Merge("mean", 0.3), pushes, {1, 1, 1, 1}, {"a", "a", "b", "b"});
  CHECK(few.WeightAt("a") == Approx(0.3));
  CHECK(few.WeightAt("b") == Approx(0.3));
  const Weighing alone = Weigh(Merge("mean", 0.3), {pushes[0]});
  CHECK(alone.weight(0) == Approx(0.3));
  // Unchanged below it.
  const Weighing below = Weigh(Merge("mean", 0.5), pushes, {1, 2, 3, 4});
  CHECK(below.weight(3) == Approx(0.4));
}

TEST_CASE("a_site_with_most_of_the_tokens_is_the_median_only_without_a_cap") {
  std::vector<Vector> pushes = HonestPushes(11);
  const Vector mean = ComputeMean(pushes);
  pushes.push_back(Times(-1, mean));
  const std::vector<int64_t> tokens = {100, 100, 100, 100, 1000};
  const Vector without = Merged(Weigh(Merge("geometric_median"), pushes, tokens), pushes);
  CHECK(DotProduct(without, mean) < 0);
  const Weighing capped = Weigh(Merge("geometric_median", 0.25), pushes, tokens);
  CHECK(DotProduct(Merged(capped, pushes), mean) > 0.4 * DotProduct(mean, mean));
  CHECK(capped.weight(4) <= 0.2501);
}

// ---- Training: five islands fit a linear model, each by steps of its own on data of its own. ----

enum class Attack { kNone, kSignFlip, kScaled, kDrifted, kLabelsFlipped };
constexpr size_t kInputs = 20, kIslands = 5;

struct Example {
  Vector input;
  double output = 0;
};

double Predict(const Vector& model, const Vector& input) { return DotProduct(model, input); }

Example Draw(const Vector& truth, Rng& rng) {
  Example example{Vector(kInputs), 0};
  for (double& x : example.input) x = rng.Normal();
  example.output = Predict(truth, example.input) + 0.5 * rng.Normal();
  return example;
}

// Returns what the island pushes: its steps' way, from `model`. `sign` of the outputs that it sees.
Vector Train(const Vector& model, const Vector& truth, double sign, double rate, Rng& rng) {
  Vector own = model;
  for (int step = 0; step < 64; ++step) {
    const Example example = Draw(truth, rng);
    const double error = Predict(own, example.input) - sign * example.output;
    for (size_t i = 0; i < kInputs; ++i) own[i] -= rate * error * example.input[i];
  }
  Vector delta(kInputs);
  for (size_t i = 0; i < kInputs; ++i) delta[i] = model[i] - own[i];
  return delta;
}

Vector Poison(Attack attack, const std::vector<Vector>& honest, const Vector& own) {
  if (attack == Attack::kSignFlip) return Times(-1, own);
  if (attack == Attack::kScaled) return Times(-20, own);
  if (attack != Attack::kDrifted) return own;
  Vector against(kInputs, 0);  // what the others agree on
  for (const Vector& push : honest) {
    for (size_t i = 0; i < kInputs; ++i) against[i] -= 2 * push[i] / (kIslands - 1);
  }
  return against;
}

// The mean loss of the model after 60 rounds, of which island 4 spoils all.
double FinalLoss(const OuterSpec& outer, Attack attack) {
  Rng rng(17, 3);
  Vector truth(kInputs), model(kInputs, 0);
  for (double& x : truth) x = rng.Normal();
  std::map<IslandId, PenaltyState> penalties;
  for (int round = 0; round < 60; ++round) {
    const double rate = 0.01 * (1 - round / 66.0);
    std::vector<Vector> pushes;
    for (size_t island = 0; island < kIslands; ++island) {
      const bool spoils = island + 1 == kIslands;
      const double sign = spoils && attack == Attack::kLabelsFlipped ? -1 : 1;
      Vector own = Train(model, truth, sign, rate, rng);
      pushes.push_back(spoils ? Poison(attack, pushes, own) : own);
    }
    std::vector<RoundCandidate> candidates;
    std::vector<double> gram;
    for (size_t i = 0; i < kIslands; ++i) {
      candidates.push_back({{static_cast<IslandId>(i), 1, 1, round}, 64, 64 * rate});
      candidates.back().site = std::to_string(i);
      for (const Vector& other : pushes) gram.push_back(DotProduct(pushes[i], other));
    }
    RoundDecision decision = Decide(candidates, gram, outer.reject_outliers, penalties);
    if (decision.is_void) continue;
    WeighRobustly(outer, candidates, gram, decision);
    for (size_t d = 0; d < kIslands; ++d) {
      for (size_t i = 0; i < kInputs; ++i) model[i] -= decision.verdicts[d].weight * pushes[d][i];
    }
  }
  double sum = 0;
  Rng held_out(99, 4);
  for (int i = 0; i < 4000; ++i) {
    const Example example = Draw(truth, held_out);
    sum += std::pow(Predict(model, example.input) - example.output, 2);
  }
  return sum / 4000;
}

TEST_CASE("by_the_geometric_median_one_of_five_costs_at_most_two_percent_of_the_loss") {
  const double honest = FinalLoss(Merge("mean"), Attack::kNone);
  const OuterSpec robust = Merge("geometric_median", 0.25);
  double worst_mean = 0;
  for (const Attack attack : {Attack::kNone, Attack::kSignFlip, Attack::kScaled, Attack::kDrifted,
                              Attack::kLabelsFlipped}) {
    const double loss = FinalLoss(robust, attack), mean = FinalLoss(Merge("mean"), attack);
    INFO("attack " << static_cast<int>(attack) << ": " << loss / honest << ", mean "
                   << mean / honest);
    CHECK(loss <= 1.02 * honest);
    worst_mean = std::max(worst_mean, mean);
  }
  CHECK(worst_mean > 1.5 * honest);  // without a rule they are attacks
}

TEST_CASE("statistics_that_are_no_numbers_leave_weights_by_tokens") {
  const double nan = std::nan("");
  std::vector<RoundCandidate> candidates;
  for (IslandId i = 0; i < 4; ++i) candidates.push_back({{i, 1, 1, 0}, 100});
  // The fourth is rejected; a server's products of the others are damaged.
  const std::vector<double> gram = {1, nan, 0, nan, nan, 1,   0,   nan,
                                    0, 0,   1, nan, nan, nan, nan, nan};
  for (const char* merge : {"geometric_median", "trimmed_norms"}) {
    INFO(merge);
    std::map<IslandId, PenaltyState> penalties;
    RoundDecision decision = Decide(candidates, gram, true, penalties);
    WeighRobustly(Merge(merge), candidates, gram, decision);
    for (size_t i = 0; i < 3; ++i) CHECK(decision.verdicts[i].weight == Approx(1.0 / 3));
    CHECK(decision.verdicts[3].weight == 0);
  }
}

TEST_CASE("pushes_of_zeros_have_weights") {
  const std::vector<Vector> pushes(3, Vector(kElements, 0));
  for (const char* merge : {"geometric_median", "trimmed_norms"}) {
    CHECK(Weigh(Merge(merge), pushes).weight(1) == Approx(1.0 / 3));
  }
}

}  // namespace
}  // namespace atl
