#include "coordinator/core/decide.h"

#include <algorithm>
#include <cmath>

#include "common/check.h"

namespace atl {
namespace {

double CountedTokens(const RoundCandidate& candidate) {
  return static_cast<double>(std::max<int64_t>(1, candidate.tokens - candidate.masked_tokens));
}

}  // namespace

RoundDecision Decide(const std::vector<RoundCandidate>& candidates, const std::vector<double>& gram,
                     const Judgement& how, std::map<IslandId, PenaltyState>& penalties) {
  const size_t k = candidates.size();
  ATOLL_CHECK(gram.size() == k * k);
  RoundDecision decision;
  double counted = 0;  // of the accepted
  for (size_t i = 0; i < k; ++i) {
    RoundVerdict verdict;
    // A sum of squares; rounding cannot make it negative, but a NaN must stay one.
    verdict.norm = std::sqrt(gram[i * k + i]);
    PenaltyState& state = penalties[candidates[i].contribution.island];
    verdict.penalty =
        Judge(state, {verdict.norm, candidates[i].reach, how.fragment}, how.reject_outliers);
    state = verdict.penalty.after;
    if (verdict.penalty.accepted) {
      decision.tokens += candidates[i].tokens;
      counted += CountedTokens(candidates[i]);
    }
    decision.verdicts.push_back(std::move(verdict));
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
