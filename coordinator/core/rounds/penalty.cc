#include "coordinator/core/rounds/penalty.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/check.h"
#include "common/number_text.h"

namespace atl {
namespace {

// No sum of squares of fp32 numbers has a larger root.
constexpr double kMostNorm = 1e50;
constexpr double kLeastClip = 1e-30;  // less is no weight to count with

double Limit(const PenaltyState& state) {
  if (state.scores.empty()) return kPenaltyScoreCut;
  std::vector<double> sorted = state.scores;
  std::sort(sorted.begin(), sorted.end());
  const size_t rank = (sorted.size() * 95 + 99) / 100;  // nearest rank, from 1
  return kPenaltyScoreCut * std::max(1.0, sorted[rank - 1]);
}

// Returns the statistics of a push's like, made where there are none.
PushNormStatistics& FindOrAddStatistics(PenaltyState& state, int64_t statistics) {
  const auto index = static_cast<size_t>(statistics);
  if (state.norm_statistics.size() <= index) state.norm_statistics.resize(index + 1);
  return state.norm_statistics[index];
}

PenaltyVerdict Reject(PenaltyVerdict verdict, const PenaltyState& before, int64_t statistics,
                      std::string reason) {
  verdict.accepted = false;
  verdict.reason = std::move(reason);
  verdict.after = before;
  if (++FindOrAddStatistics(verdict.after, statistics).rejections_in_row >=
      kPenaltyRejectionsBeforeWarmUp) {
    verdict.warm_up_again = true;
    verdict.after = PenaltyState();
    verdict.reason += absl::StrFormat("; %d rejections in a row: the island warms up again",
                                      kPenaltyRejectionsBeforeWarmUp);
  }
  return verdict;
}

// "norm 1.08, 3.4 deviations below its mean"; `scored`: there is a mean to compare it with.
std::string DescribeNorm(double norm, double score, bool scored) {
  std::string text = absl::StrCat("norm ", NumberText(norm, 3));
  if (!scored) return text + ", of which there is no mean yet";
  if (std::abs(score) < 0.05) return text + ", at its mean";
  return absl::StrFormat("%s, %.1f deviations %s its mean", text, std::abs(score),
                         score < 0 ? "below" : "above");
}

void Learn(double size, PushNormStatistics& norm_statistics) {
  if (norm_statistics.warm_up_pushes == 0) {
    norm_statistics.mean = size;
    norm_statistics.deviation = kPenaltyFirstDeviation * size;
  } else {
    norm_statistics.mean = kPenaltyRate * size + (1 - kPenaltyRate) * norm_statistics.mean;
    const double off = size - norm_statistics.mean;
    norm_statistics.deviation =
        std::sqrt((1 - kPenaltyRate) * norm_statistics.deviation * norm_statistics.deviation +
                  kPenaltyRate * off * off);
  }
  norm_statistics.warm_up_pushes =
      std::min(norm_statistics.warm_up_pushes + 1, kPenaltyWarmUpPushes);
  norm_statistics.rejections_in_row = 0;
}

void Keep(double score, std::vector<double>& scores) {
  scores.push_back(std::min(score, kPenaltyScoreCut));
  if (scores.size() > kPenaltyScoresKept) scores.erase(scores.begin());
}

}  // namespace

PenaltyVerdict Judge(const PenaltyState& before, const JudgedPush& push, Outliers outliers) {
  const auto& [norm, learning_rate_sum, statistics, excess] = push;
  ATOLL_CHECK(learning_rate_sum > 0 && statistics >= 0);
  const auto index = static_cast<size_t>(statistics);
  const PushNormStatistics norm_statistics =
      index < before.norm_statistics.size() ? before.norm_statistics[index] : PushNormStatistics();
  const double size = norm / learning_rate_sum;
  PenaltyVerdict verdict;
  const bool first = norm_statistics.warm_up_pushes == 0;
  const bool warming_up = norm_statistics.warm_up_pushes < kPenaltyWarmUpPushes;
  verdict.limit = warming_up ? kPenaltyScoreCut : Limit(before);
  if (!(norm <= kMostNorm)) {
    return Reject(verdict, before, statistics, "its norm is not finite: rejected");
  }
  // A deviation of 0 (all norms were 0) is no scale to measure with.
  const bool scored = !first && norm_statistics.deviation > 0;
  if (scored) verdict.score = (size - norm_statistics.mean) / norm_statistics.deviation;
  double counted = size;
  const std::string measured = DescribeNorm(norm, verdict.score, scored);
  const std::string beyond = absl::StrFormat("%s (limit %.1f)", measured, verdict.limit);
  verdict.reason = measured + ": accepted";
  if (warming_up) {
    verdict.reason += absl::StrFormat(", warm-up push %d of %d", norm_statistics.warm_up_pushes + 1,
                                      kPenaltyWarmUpPushes);
  }
  if (outliers != Outliers::kAccepted && warming_up && excess > kPenaltyExcessMost) {
    return Reject(verdict, before, statistics,
                  absl::StrFormat("norm %s, %.1f times that of the round's median island (limit "
                                  "%.1f in the warm-up): rejected",
                                  NumberText(norm, 3), excess, kPenaltyExcessMost));
  }
  if (outliers != Outliers::kAccepted && verdict.score > verdict.limit) {
    if (!warming_up && outliers == Outliers::kRejected) {
      return Reject(verdict, before, statistics,
                    absl::StrFormat("%s: rejected; its usual norm is %s", beyond,
                                    NumberText(norm_statistics.mean * learning_rate_sum, 3)));
    }
    counted = norm_statistics.mean + verdict.limit * norm_statistics.deviation;
    verdict.clip = counted / size;
    if (!(verdict.clip > kLeastClip)) {
      return Reject(verdict, before, statistics,
                    beyond + ": rejected; nothing of it would be left");
    }
    verdict.reason += absl::StrFormat(", clipped to the limit of %.1f, by a factor of %s",
                                      verdict.limit, NumberText(verdict.clip, 3));
    if (!warming_up) {  // `after` remains that of an island that has not pushed
      verdict.accepted = true;
      verdict.reason += "; every island of the round is an outlier: statistics begin anew";
      return verdict;
    }
  }
  verdict.accepted = true;
  verdict.after = before;
  Learn(counted, FindOrAddStatistics(verdict.after, statistics));
  Keep(verdict.score, verdict.after.scores);
  return verdict;
}

}  // namespace atl
