#include "coordinator/core/rounds/penalty.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <limits>

namespace atl {
namespace {

// An island that has pushed these norms, one after the other.
struct Island {
  PenaltyState state;
  Outliers outliers = Outliers::kRejected;

  PenaltyVerdict Push(double norm, double learning_rate_sum = 1, int64_t fragment = 0) {
    const PenaltyVerdict verdict = Judge(state, {norm, learning_rate_sum, fragment}, outliers);
    state = verdict.after;
    return verdict;
  }
  PushNormStatistics norm_statistics(size_t fragment = 0) const {
    return state.norm_statistics.at(fragment);
  }
  void WarmUp(double norm = 1) {
    for (int i = 0; i < kPenaltyWarmUpPushes; ++i) REQUIRE(Push(norm).accepted);
  }
};

TEST_CASE("the first push sets the mean, and a tenth of it as deviation") {
  Island island;
  CHECK(island.Push(4).accepted);
  CHECK(island.norm_statistics().mean == 4);
  CHECK(island.norm_statistics().deviation == Approx(0.4));
}

TEST_CASE("the score is taken before the update, which follows the moving averages") {
  Island island;
  island.Push(4);
  const PenaltyVerdict verdict = island.Push(4.8);
  CHECK(verdict.score == Approx(2));
  const double mean = 0.02 * 4.8 + 0.98 * 4;
  CHECK(island.norm_statistics().mean == Approx(mean));
  CHECK(island.norm_statistics().deviation ==
        Approx(std::sqrt(0.98 * 0.16 + 0.02 * (4.8 - mean) * (4.8 - mean))));
}

TEST_CASE("an outlier in the warm-up is clipped to a score of 3 and learnt as clipped") {
  Island island;
  island.Push(4);
  const PenaltyVerdict verdict = island.Push(400);
  CHECK(verdict.accepted);
  CHECK(verdict.clip * 400 == Approx(4 + 3 * 0.4));
  CHECK(island.norm_statistics().mean == Approx(0.02 * 5.2 + 0.98 * 4));
}

TEST_CASE("norms that grow with the learning rate are no outliers, others are") {
  Island island;
  for (int round = 1; round <= 30; ++round) {
    const PenaltyVerdict verdict = island.Push(0.002 * round, 1e-5 * round);
    CHECK(verdict.accepted);
    CHECK(verdict.clip == 1);
  }
  const PenaltyVerdict verdict = island.Push(0.002 * 31, 1e-5 * 10);
  CHECK_FALSE(verdict.accepted);
  CHECK(verdict.score > verdict.limit);
}

TEST_CASE("after the warm-up an outlier is rejected and teaches nothing") {
  Island island;
  island.WarmUp();
  const PenaltyState before = island.state;
  const PenaltyVerdict verdict = island.Push(100);
  CHECK_FALSE(verdict.accepted);
  CHECK(island.norm_statistics().mean == before.norm_statistics[0].mean);
  CHECK(island.state.scores == before.scores);
  CHECK(island.norm_statistics().rejections_in_row == 1);
}

TEST_CASE("small norms are never outliers") {
  Island island;
  island.WarmUp();
  CHECK(island.Push(0).accepted);
}

TEST_CASE("what is not finite is rejected even in the warm-up") {
  Island island;
  CHECK_FALSE(island.Push(std::numeric_limits<double>::quiet_NaN()).accepted);
  CHECK_FALSE(island.Push(std::numeric_limits<double>::infinity()).accepted);
}

TEST_CASE("three rejections in a row begin the warm-up again; an accepted push breaks the row") {
  Island island;
  island.WarmUp();
  island.Push(100);
  island.Push(100);
  CHECK(island.Push(1).accepted);
  CHECK_FALSE(island.Push(100).warm_up_again);
  CHECK_FALSE(island.Push(100).warm_up_again);
  CHECK(island.Push(100).warm_up_again);
  CHECK(island.state == PenaltyState());
  CHECK(island.Push(100).accepted);
  CHECK(island.norm_statistics().mean == 100);
}

TEST_CASE("each_fragment_is_judged_by_statistics_of_its_own_pushes") {
  Island island;
  for (int turn = 0; turn < 2 * kPenaltyWarmUpPushes; ++turn) {
    for (const int64_t fragment : {0, 1, 2}) {
      const PenaltyVerdict verdict = island.Push(fragment == 2 ? 4 : 0.5, 1, fragment);
      CHECK(verdict.accepted);
      CHECK(verdict.clip == 1);
    }
  }
  CHECK(island.norm_statistics(2).mean == Approx(4));
  CHECK_FALSE(island.Push(4, 1, 1).accepted);
  CHECK(island.norm_statistics(1).rejections_in_row == 1);
  CHECK(island.Push(4, 1, 2).accepted);
  CHECK(island.norm_statistics(1).rejections_in_row == 1);  // of its own row
}

TEST_CASE("a_fragment_rejected_three_times_in_a_row_begins_the_warm_up_of_all") {
  Island island;
  for (const int64_t fragment : {0, 1}) {
    for (int i = 0; i < kPenaltyWarmUpPushes; ++i) island.Push(1, 1, fragment);
  }
  for (int turn = 0; turn < kPenaltyRejectionsBeforeWarmUp; ++turn) {
    CHECK(island.Push(1, 1, 0).accepted);
    CHECK(island.Push(100, 1, 1).warm_up_again == (turn == kPenaltyRejectionsBeforeWarmUp - 1));
  }
  CHECK(island.state == PenaltyState());
}

TEST_CASE("scores of 3 among the last widen the limit, to 9 at most") {
  Island island;
  island.WarmUp();
  island.state.scores.assign(100, 0);
  for (int i = 0; i < 5; ++i) island.state.scores[i] = 3;
  CHECK(island.Push(1).limit == 3);  // five of a hundred lie above the 95th percentile
  island.state.scores.assign(100, 0);
  for (int i = 0; i < 6; ++i) island.state.scores[i] = 3;
  CHECK(island.Push(1).limit == 9);
}

TEST_CASE("only the last hundred scores are kept") {
  Island island;
  for (int i = 0; i < 150; ++i) island.Push(1);
  CHECK(island.state.scores.size() == 100);
}

TEST_CASE("with rejection switched off only what is not finite is rejected, nothing is clipped") {
  Island island;
  island.outliers = Outliers::kAccepted;
  island.WarmUp();
  const PenaltyVerdict verdict = island.Push(1000);
  CHECK(verdict.accepted);
  CHECK(verdict.clip == 1);
  CHECK_FALSE(island.Push(std::nan("")).accepted);
}

TEST_CASE("an island that always sends zeros has no scale and is not judged") {
  Island island;
  island.WarmUp(0);
  CHECK(island.Push(1).accepted);
}

}  // namespace
}  // namespace atl
