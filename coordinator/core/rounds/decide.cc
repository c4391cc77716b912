#include "coordinator/core/rounds/decide.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <utility>

#include "common/check.h"

namespace atl {
namespace {

using Penalties = std::map<IslandId, PenaltyState>;

double CountedTokens(const RoundCandidate& candidate) {
  return static_cast<double>(std::max<int64_t>(1, candidate.tokens - candidate.masked_tokens));
}

// Norms and sizes of a round's islands, of the largest contribution of each.
class RoundScale {
 public:
  RoundScale(const std::vector<RoundCandidate>& candidates, const std::vector<double>& gram) {
    for (size_t i = 0; i < candidates.size(); ++i) {
      const double norm = std::sqrt(gram[i * candidates.size() + i]);
      if (candidates[i].is_unfit || !std::isfinite(norm)) continue;
      auto& [most_norm, most_size] =
          islands_[candidates[i].statistics][candidates[i].contribution.island];
      most_norm = std::max(most_norm, norm);
      most_size = std::max(most_size, norm / candidates[i].learning_rate_sum);
    }
  }

  // Returns what JudgedPush::excess is. Longer rounds have larger norms, shorter ones larger sizes:
  // what is beyond both is neither.
  double GetExcess(const RoundCandidate& candidate, double norm) const {
    const auto like = islands_.find(candidate.statistics);
    if (like == islands_.end() || std::size(like->second) < kWitnessesMin) return 0;
    std::vector<double> norms, sizes;
    for (const auto& [island, most] : like->second) {
      norms.push_back(most.first);
      sizes.push_back(most.second);
    }
    const double median = Median(norms), median_size = Median(sizes);
    if (median <= 0 || median_size <= 0) return 0;
    return std::min(norm / median, norm / candidate.learning_rate_sum / median_size);
  }

 private:
  static constexpr size_t kWitnessesMin = 3;  // of fewer islands none is the usual one

  // The lower one of two in the middle.
  static double Median(std::vector<double>& values) {
    const auto middle = values.begin() + (std::ssize(values) - 1) / 2;
    std::nth_element(values.begin(), middle, values.end());
    return *middle;
  }

  std::map<int64_t, std::map<IslandId, std::pair<double, double>>> islands_;  // by statistics
};

std::vector<RoundVerdict> JudgeAll(const std::vector<RoundCandidate>& candidates,
                                   const std::vector<double>& gram, Outliers outliers,
                                   Penalties& penalties) {
  const size_t k = candidates.size();
  const RoundScale scale(candidates, gram);
  std::vector<RoundVerdict> verdicts;
  for (size_t i = 0; i < k; ++i) {
    RoundVerdict verdict;
    // A sum of squares; rounding cannot make it negative, but a NaN must stay one.
    verdict.norm = std::sqrt(gram[i * k + i]);
    PenaltyState& state = penalties[candidates[i].contribution.island];
    if (candidates[i].is_unfit) {
      verdict.penalty.reason = "what its servers have is not what was signed: rejected";
      verdicts.push_back(std::move(verdict));
      continue;
    }
    verdict.penalty =
        Judge(state,
              {verdict.norm, candidates[i].learning_rate_sum, candidates[i].statistics,
               scale.GetExcess(candidates[i], verdict.norm)},
              outliers);
    state = verdict.penalty.after;
    verdicts.push_back(std::move(verdict));
  }
  return verdicts;
}

// Returns whether all of at least two islands are outliers.
bool AllAreOutliers(const std::vector<RoundCandidate>& candidates,
                    const std::vector<RoundVerdict>& verdicts) {
  std::set<IslandId> islands;
  for (size_t i = 0; i < verdicts.size(); ++i) {
    if (candidates[i].is_unfit) continue;
    if (verdicts[i].penalty.accepted || !std::isfinite(verdicts[i].norm)) return false;
    islands.insert(candidates[i].contribution.island);
  }
  return islands.size() > 1;
}

}  // namespace

RoundDecision Decide(const std::vector<RoundCandidate>& candidates, const std::vector<double>& gram,
                     bool reject_outliers, Penalties& penalties) {
  const size_t k = candidates.size();
  ATOLL_CHECK(gram.size() == k * k);
  RoundDecision decision;
  double counted = 0;  // of the accepted
  const Penalties before = penalties;
  decision.verdicts = JudgeAll(
      candidates, gram, reject_outliers ? Outliers::kRejected : Outliers::kAccepted, penalties);
  if (AllAreOutliers(candidates, decision.verdicts)) {
    penalties = before;
    decision.verdicts = JudgeAll(candidates, gram, Outliers::kClipped, penalties);
  }
  for (size_t i = 0; i < k; ++i) {
    if (!decision.verdicts[i].penalty.accepted) continue;
    decision.tokens += candidates[i].tokens;
    counted += CountedTokens(candidates[i]);
  }
  decision.is_void = decision.tokens == 0;
  if (decision.is_void) return decision;
  for (size_t i = 0; i < k; ++i) {
    RoundVerdict& verdict = decision.verdicts[i];
    if (!verdict.penalty.accepted) continue;
    verdict.weight = CountedTokens(candidates[i]) / counted * verdict.penalty.clip;
  }
  return decision;
}

}  // namespace atl
