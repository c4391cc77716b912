#include "coordinator/core/penalty.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_format.h"
#include "common/check.h"

namespace atl {
namespace {

double Limit(const PenaltyState& state) {
  if (state.scores.empty()) return kPenaltyScoreCut;
  std::vector<double> sorted = state.scores;
  std::sort(sorted.begin(), sorted.end());
  const size_t rank = (sorted.size() * 95 + 99) / 100;  // nearest rank, from 1
  return kPenaltyScoreCut * std::max(1.0, sorted[rank - 1]);
}

PenaltyVerdict Reject(PenaltyVerdict verdict, const PenaltyState& before, std::string reason) {
  verdict.accepted = false;
  verdict.reason = std::move(reason);
  verdict.after = before;
  if (++verdict.after.rejections_in_row >= kPenaltyRejectionsBeforeWarmUp) {
    verdict.warm_up_again = true;
    verdict.after = PenaltyState();
    verdict.reason += absl::StrFormat("; %d rejections in a row: the island warms up again",
                                      kPenaltyRejectionsBeforeWarmUp);
  }
  return verdict;
}

void Learn(double size, double score, PenaltyState& state) {
  if (state.warm_up_pushes == 0) {
    state.mean = size;
    state.deviation = kPenaltyFirstDeviation * size;
  } else {
    state.mean = kPenaltyRate * size + (1 - kPenaltyRate) * state.mean;
    const double off = size - state.mean;
    state.deviation = std::sqrt((1 - kPenaltyRate) * state.deviation * state.deviation +
                                kPenaltyRate * off * off);
  }
  state.warm_up_pushes = std::min(state.warm_up_pushes + 1, kPenaltyWarmUpPushes);
  state.rejections_in_row = 0;
  state.scores.push_back(std::min(score, kPenaltyScoreCut));
  if (state.scores.size() > kPenaltyScoresKept) state.scores.erase(state.scores.begin());
}

}  // namespace

PenaltyVerdict Judge(const PenaltyState& before, double norm, double reach, bool reject_outliers) {
  ATOLL_CHECK(reach > 0);
  const double size = norm / reach;
  PenaltyVerdict verdict;
  const bool first = before.warm_up_pushes == 0;
  const bool warming_up = before.warm_up_pushes < kPenaltyWarmUpPushes;
  verdict.limit = warming_up ? kPenaltyScoreCut : Limit(before);
  if (!std::isfinite(norm)) return Reject(verdict, before, "rejected: its norm is not finite");
  // A deviation of 0 (all norms were 0) is no scale to measure with.
  if (!first && before.deviation > 0) verdict.score = (size - before.mean) / before.deviation;
  double counted = size;
  verdict.reason = absl::StrFormat("accepted: norm %.4g, score %.2f of %.2f", norm, verdict.score,
                                   verdict.limit);
  if (warming_up) {
    verdict.reason +=
        absl::StrFormat(", warm-up push %d of %d", before.warm_up_pushes + 1, kPenaltyWarmUpPushes);
  }
  if (reject_outliers && verdict.score > verdict.limit) {
    if (!warming_up) {
      return Reject(verdict, before,
                    absl::StrFormat("rejected: norm %.4g is %.2f deviations above its usual %.4g, "
                                    "the limit is %.2f",
                                    norm, verdict.score, before.mean * reach, verdict.limit));
    }
    counted = before.mean + verdict.limit * before.deviation;
    verdict.clip = counted / size;
    verdict.reason += absl::StrFormat(", clipped by %.3g", verdict.clip);
  }
  verdict.accepted = true;
  verdict.after = before;
  Learn(counted, verdict.score, verdict.after);
  return verdict;
}

}  // namespace atl
