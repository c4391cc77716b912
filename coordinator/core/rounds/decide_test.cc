#include "coordinator/core/rounds/decide.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <numeric>

namespace atl {
namespace {

using Vector = std::vector<double>;

std::vector<double> ComputeGramMatrix(const std::vector<Vector>& deltas) {
  std::vector<double> gram;
  for (const Vector& a : deltas) {
    for (const Vector& b : deltas) {
      gram.push_back(std::inner_product(a.begin(), a.end(), b.begin(), 0.0));
    }
  }
  return gram;
}

RoundCandidate Candidate(IslandId island, int64_t tokens) { return {{island, 1, 1, 0}, tokens, 1}; }

PenaltyState WarmedUp(double norm) {
  PenaltyState state;
  for (int i = 0; i < kPenaltyWarmUpPushes; ++i)
    state = Judge(state, {norm}, Outliers::kRejected).after;
  return state;
}

TEST_CASE("weights are shares of tokens") {
  std::map<IslandId, PenaltyState> penalties;
  const RoundDecision d = Decide({Candidate(0, 300), Candidate(1, 100)},
                                 ComputeGramMatrix({{1, 0}, {0, 1}}), true, penalties);
  CHECK(d.verdicts[0].weight == Approx(0.75));
  CHECK(d.verdicts[1].weight == Approx(0.25));
  CHECK(d.tokens == 400);
}

TEST_CASE("weights_are_shares_of_the_tokens_that_the_loss_counted") {
  std::map<IslandId, PenaltyState> penalties;
  RoundCandidate first = Candidate(0, 300), second = Candidate(1, 100), third = Candidate(2, 50);
  first.masked_tokens = 290;
  second.masked_tokens = 70;
  third.masked_tokens = 50;  // nothing counted: as good as no weight
  const RoundDecision d =
      Decide({first, second, third}, ComputeGramMatrix({{1, 0}, {0, 1}, {0, 0}}), true, penalties);
  CHECK(d.verdicts[0].weight == Approx(10.0 / 41));
  CHECK(d.verdicts[1].weight == Approx(30.0 / 41));
  CHECK(d.verdicts[2].weight == Approx(1.0 / 41));
  CHECK(d.tokens == 450);
}

TEST_CASE("a rejected island has no weight, and its tokens no share") {
  std::map<IslandId, PenaltyState> penalties = {{0, WarmedUp(1)}, {1, WarmedUp(1)}};
  const RoundDecision d = Decide({Candidate(0, 100), Candidate(1, 100)},
                                 ComputeGramMatrix({{1, 0}, {0, 90}}), true, penalties);
  CHECK(d.verdicts[0].weight == 1);
  CHECK(d.verdicts[1].weight == 0);
  CHECK_FALSE(d.verdicts[1].penalty.accepted);
  CHECK(d.tokens == 100);
}

TEST_CASE("a pseudo-gradient that is not a number does not reach the others") {
  std::map<IslandId, PenaltyState> penalties;
  const double nan = std::nan("");
  const RoundDecision d =
      Decide({Candidate(0, 100), Candidate(1, 100)}, {4, nan, nan, nan}, true, penalties);
  CHECK(d.verdicts[0].weight == Approx(1));
  CHECK(d.verdicts[1].weight == 0);
}

TEST_CASE("if all are rejected the round is void") {
  std::map<IslandId, PenaltyState> penalties;
  const RoundDecision d = Decide({Candidate(0, 100)}, {std::nan("")}, true, penalties);
  CHECK(d.is_void);
  CHECK(d.verdicts[0].weight == 0);
  CHECK(penalties[0].norm_statistics[0].rejections_in_row == 1);
}

TEST_CASE("if every island is an outlier all are clipped, and their statistics begin anew") {
  std::map<IslandId, PenaltyState> penalties = {{0, WarmedUp(1)}, {1, WarmedUp(1)}};
  const RoundDecision d = Decide({Candidate(0, 100), Candidate(1, 100)},
                                 ComputeGramMatrix({{80, 0}, {0, 90}}), true, penalties);
  CHECK_FALSE(d.is_void);
  const double limit = 1 + d.verdicts[0].penalty.limit * WarmedUp(1).norm_statistics[0].deviation;
  CHECK(d.verdicts[0].weight * 80 == Approx(limit / 2));
  CHECK(d.verdicts[1].weight * 90 == Approx(limit / 2));
  CHECK(penalties[0].norm_statistics.empty());
  CHECK(penalties[1].norm_statistics.empty());
}

// Four islands, the last of which pushes against the others, so many times as far.
std::vector<double> ComputeAttackedGram(double factor) {
  return ComputeGramMatrix({{1, 0.1}, {0.9, 0}, {1.1, -0.1}, {-factor, 0}});
}

TEST_CASE("what_is_far_beyond_the_median_island_has_no_weight_from_the_first_push_on") {
  std::map<IslandId, PenaltyState> penalties;
  std::vector<RoundCandidate> all;
  for (const IslandId island : {0, 1, 2, 3}) all.push_back(Candidate(island, 100));
  for (int round = 0; round < 2 * kPenaltyWarmUpPushes; ++round) {
    const RoundDecision d = Decide(all, ComputeAttackedGram(20), true, penalties);
    REQUIRE_FALSE(d.verdicts[3].penalty.accepted);
    REQUIRE(d.verdicts[0].weight == Approx(1.0 / 3));
  }
  CHECK(penalties[3].norm_statistics.size() <= 1);
  CHECK(Decide(all, ComputeAttackedGram(1), true, penalties).verdicts[3].penalty.accepted);
}

TEST_CASE("two_islands_have_no_median_and_a_job_that_rejects_nothing_needs_none") {
  std::map<IslandId, PenaltyState> two, open;
  CHECK(Decide({Candidate(0, 1), Candidate(1, 1)}, ComputeGramMatrix({{1, 0}, {-20, 0}}), true, two)
            .verdicts[1]
            .penalty.accepted);
  CHECK(Decide({Candidate(0, 1), Candidate(1, 1), Candidate(2, 1), Candidate(3, 1)},
               ComputeAttackedGram(20), false, open)
            .verdicts[3]
            .penalty.accepted);
}

TEST_CASE("islands_of_longer_or_shorter_rounds_are_no_outliers_in_the_warm_up") {
  // Steps and the norm that they reach: by their number at most, by its root at least.
  const auto [reach, norm] =
      GENERATE(std::pair(30.0, 30.0), std::pair(30.0, 5.5), std::pair(1 / 30.0, 1 / 5.5));
  std::map<IslandId, PenaltyState> penalties;
  std::vector<RoundCandidate> all = {Candidate(0, 1), Candidate(1, 1), Candidate(2, 1)};
  all[2].learning_rate_sum = reach;
  const RoundDecision d =
      Decide(all, ComputeGramMatrix({{1, 0}, {1, 0}, {norm, 0}}), true, penalties);
  CHECK(d.verdicts[2].penalty.accepted);
}

TEST_CASE("all contributions of one island are no agreement of islands") {
  std::map<IslandId, PenaltyState> penalties = {{0, WarmedUp(1)}};
  const RoundDecision d = Decide({Candidate(0, 1), {{0, 2, 1, 0}, 1, 1}},
                                 ComputeGramMatrix({{80, 0}, {0, 90}}), true, penalties);
  CHECK(d.is_void);
}

TEST_CASE("two contributions of one island are judged one after the other") {
  std::map<IslandId, PenaltyState> penalties;
  const RoundDecision d = Decide({Candidate(0, 1), {{0, 2, 1, 0}, 1, 1}},
                                 ComputeGramMatrix({{1, 0}, {2, 0}}), true, penalties);
  CHECK(d.verdicts[1].penalty.score == Approx(10));
  CHECK(d.verdicts[1].penalty.clip == Approx(1.3 / 2));
  CHECK(penalties[0].norm_statistics[0].warm_up_pushes == 2);
}

}  // namespace
}  // namespace atl
