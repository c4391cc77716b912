#include "coordinator/core/rounds/robust_weights.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/number_text.h"

namespace atl {
namespace {

constexpr int kIterationsMax = 100;
constexpr double kLeastChange = 1e-9;  // of all weights together, in one iteration
// Servers sum fp32 products: shorter distances than this share of the longest norm are rounding.
constexpr double kLeastDistance = 1e-3;
constexpr size_t kTrimmedOf = 5;        // of so many norms one is left out at each end
constexpr double kNoChange = 1.000001;  // a factor on a weight that no reason names

// An accepted contribution: `scale` times its pseudo-gradient has `share` of the round.
struct Weighed {
  size_t index = 0;  // among the candidates
  double share = 0;
  double scale = 1;
  std::string reason;
};

double SumShares(const std::vector<Weighed>& all) {
  return std::accumulate(all.begin(), all.end(), 0.0,
                         [](double sum, const Weighed& one) { return sum + one.share; });
}

// Gives what a site has beyond `most` to the others in proportion; where all have that much, the
// shares sum to less than before.
void CapSites(double most, const std::vector<RoundCandidate>& candidates,
              std::vector<Weighed>& all) {
  std::map<std::string, double> by_site, factors;
  for (const Weighed& one : all) by_site[candidates[one.index].site] += one.share;
  double left = SumShares(all);  // for the sites that are not capped
  double rest = left;            // what these have
  while (rest > 0 && factors.size() < by_site.size()) {
    const double factor = left / rest;
    const size_t before = factors.size();
    for (const auto& [site, share] : by_site) {
      if (factors.contains(site) || share * factor <= most * kNoChange) continue;
      factors[site] = most / share;
      left -= most;
      rest -= share;
    }
    if (factors.size() > before) continue;
    for (const auto& [site, share] : by_site) factors.try_emplace(site, factor);
  }
  for (Weighed& one : all) {
    const std::string& site = candidates[one.index].site;
    const auto found = factors.find(site);
    if (found == factors.end()) continue;
    if (by_site[site] * found->second >= most / kNoChange && found->second < 1 / kNoChange) {
      absl::StrAppend(&one.reason, "; its site has the most of a round, ", NumberText(most, 2));
    }
    one.share *= found->second;
  }
}

// Weiszfeld's iteration, in which each step needs the distances to a weighted sum alone. False, and
// nothing changes: the matrix leaves them undefined.
bool TakeGeometricMedian(const std::vector<double>& gram, size_t k, std::vector<Weighed>& all) {
  const size_t n = all.size();
  const double total = SumShares(all);
  const auto product = [&](size_t i, size_t j) {
    return all[i].scale * all[j].scale * gram[all[i].index * k + all[j].index];
  };
  double longest = 0;
  for (size_t i = 0; i < n; ++i) longest = std::max(longest, product(i, i));
  const double least = kLeastDistance * std::sqrt(longest);
  if (!(least > 0)) return false;
  std::vector<double> weights(n);
  for (size_t i = 0; i < n; ++i) weights[i] = all[i].share / total;
  double change = 1;
  for (int iteration = 0; iteration < kIterationsMax && change > kLeastChange; ++iteration) {
    std::vector<double> along(n, 0), next(n);  // products with the weighted sum
    double square = 0, sum = 0;
    for (size_t i = 0; i < n; ++i) {
      for (size_t j = 0; j < n; ++j) along[i] += weights[j] * product(i, j);
      square += weights[i] * along[i];
    }
    for (size_t i = 0; i < n; ++i) {
      const double distance = std::sqrt(std::max(0.0, product(i, i) - 2 * along[i] + square));
      next[i] = all[i].share / std::max(distance, least);
      sum += next[i];
    }
    if (!std::isfinite(sum) || !std::isfinite(square) || !(sum > 0)) return false;
    change = 0;
    for (size_t i = 0; i < n; ++i) {
      next[i] /= sum;
      change += std::abs(next[i] - weights[i]);
    }
    weights = std::move(next);
  }
  for (size_t i = 0; i < n; ++i) {
    absl::StrAppend(&all[i].reason, "; ", NumberText(weights[i], 3),
                    " of the geometric median, by tokens ", NumberText(all[i].share / total, 3));
    all[i].share = weights[i] * total;
  }
  return true;
}

// No pseudo-gradient counts with more than the mean of sizes (see penalty.h) without a fifth of
// them at each end, at least one.
void TrimNorms(const std::vector<RoundCandidate>& candidates, const RoundDecision& decision,
               std::vector<Weighed>& all) {
  std::vector<double> sizes;
  const auto size = [&](const Weighed& one) {
    return one.scale * decision.verdicts[one.index].norm / candidates[one.index].learning_rate_sum;
  };
  for (const Weighed& one : all) sizes.push_back(size(one));
  std::sort(sizes.begin(), sizes.end());
  const auto trimmed = static_cast<std::ptrdiff_t>((sizes.size() + kTrimmedOf - 1) / kTrimmedOf);
  const auto begin = sizes.begin() + trimmed, end = sizes.end() - trimmed;
  const double mean = std::accumulate(begin, end, 0.0) / static_cast<double>(end - begin);
  if (!(mean > 0)) return;  // a weight of 0 is none
  for (Weighed& one : all) {
    const double own = size(one);
    if (!(own > mean * kNoChange)) continue;
    one.scale *= mean / own;
    absl::StrAppend(&one.reason, "; trimmed to the mean norm of the others, by a factor of ",
                    NumberText(mean / own, 3));
  }
}

}  // namespace

void WeighRobustly(const OuterSpec& outer, const std::vector<RoundCandidate>& candidates,
                   const std::vector<double>& gram, RoundDecision& decision) {
  std::vector<Weighed> all;
  for (size_t i = 0; i < candidates.size(); ++i) {
    const RoundVerdict& verdict = decision.verdicts[i];
    if (!verdict.penalty.accepted) continue;
    all.push_back({i, verdict.weight / verdict.penalty.clip, verdict.penalty.clip, ""});
  }
  const bool is_capped = outer.max_share < 1;
  // Also before the merge: what a site claims to have trained on must not make it the median.
  if (is_capped) CapSites(outer.max_share, candidates, all);
  if (std::ssize(all) >= kRobustContributionsMin) {
    if (outer.merge == "geometric_median" && TakeGeometricMedian(gram, candidates.size(), all) &&
        is_capped) {
      CapSites(outer.max_share, candidates, all);
    }
    if (outer.merge == "trimmed_norms") TrimNorms(candidates, decision, all);
  }
  for (const Weighed& one : all) {
    RoundVerdict& verdict = decision.verdicts[one.index];
    verdict.weight = one.share * one.scale;
    verdict.penalty.reason += one.reason;
  }
}

}  // namespace atl
