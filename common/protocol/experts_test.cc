#include "common/protocol/experts.h"

#include <catch2/catch.hpp>

namespace atl {
namespace {

RoundTerm Term(int64_t tokens, std::vector<int64_t> seen) {
  return {.tokens = tokens, .expert_tokens = std::move(seen)};
}

TEST_CASE("an_expert_is_weighted_by_the_tokens_that_it_saw") {
  const std::vector<RoundTerm> terms = {Term(100, {10, 0, 40}), Term(300, {30, 60, 40})};
  const std::vector<double> weights = {0.25, 0.75};
  SECTION("the same share changes no bit") {
    CHECK(WeighExpert(terms, 0, {0.3, 0.6}) == std::vector<double>{0.3, 0.6});
  }
  SECTION("unseen, the others have all of the weight") {
    CHECK(WeighExpert(terms, 1, weights) == std::vector<double>{0, 1});
    // A push that the round clips stays clipped.
    CHECK(WeighExpert(terms, 1, {0.1, 0.4}) == std::vector<double>{0, 0.5});
  }
  SECTION("by tokens, where the round's weights are those of tokens") {
    const std::vector<double> half = WeighExpert(terms, 2, weights);
    CHECK(half[0] == Approx(0.5));
    CHECK(half[1] == Approx(0.5));
  }
}

TEST_CASE("one_island_has_all_of_the_weight_whatever_its_experts_saw") {
  CHECK(WeighExpert(std::vector{Term(100, {7})}, 0, {1.0}) == std::vector<double>{1});
  CHECK(WeighExpert(std::vector{Term(0, {})}, 0, {0.7}) == std::vector<double>{0.7});
}

TEST_CASE("a_shard_is_pushed_unless_its_expert_saw_nothing") {
  const auto shard = [](int32_t expert) { return OwnedShard{.expert = expert}; };
  CHECK(IsSeen({5, 0}, shard(-1)));
  CHECK(IsSeen({5, 0}, shard(0)));
  CHECK_FALSE(IsSeen({5, 0}, shard(1)));
  CHECK(IsSeen({}, shard(1)));
}

TEST_CASE("experts_have_no_weights_where_a_site_contributes_or_layers_are_merged") {
  OuterSpec outer;
  CHECK(WeighsExperts(outer));
  outer.merge = "radial";
  CHECK_FALSE(WeighsExperts(outer));
  CHECK_FALSE(CutsByExpert(outer));
  outer.expert_fragments = 2;
  CHECK(CutsByExpert(outer));
  CHECK_FALSE(WeighsExperts({.site = {.rounds = 4}}));
  CHECK_FALSE(WeighsExperts({.contributes_to = "job-1"}));
}

}  // namespace
}  // namespace atl
