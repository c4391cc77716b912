// Rounds that concern one fragment each; the delay and blend of adoptions.

#include <catch2/catch.hpp>

#include "worker/core/testing/fixture.h"

namespace atl::worker {
namespace {

template <typename Shards>
std::vector<ShardId> ListShardIds(const Shards& shards) {
  std::vector<ShardId> ids;
  for (const ShardPlacement& shard : shards) ids.push_back(shard.shard);
  return ids;
}

using Ids = std::vector<ShardId>;

// Two fragments: layer 0 has the turns of odd versions.
struct Fragments : Fixture {
  explicit Fragments(Overlap overlap = Overlap::kNone) {
    order.spec.outer.overlap = overlap;
    order.spec.outer.steps_per_round = 8;
    order.spec.outer.fragments = 2;
    Starts();
  }
  CaptureDelta Captures() {
    const CaptureDelta capture = Wants<CaptureDelta>();
    HandleEvent(DeltaCaptured{capture.contribution});
    HandleEvent(DeltaReady{capture.contribution});
    Wants<PushRequest>();
    return capture;
  }
  AdoptPulled AdoptsPulled() {
    const AdoptPulled adopt = Wants<AdoptPulled>();
    HandleEvent(Adopted{adopt.version});
    return adopt;
  }
  StartPull PullsShards() {
    const StartPull pull = Wants<StartPull>();
    HandleEvent(PullDone{pull.pull, 100});
    return pull;
  }
};

TEST_CASE("each_round_captures_pulls_and_adopts_its_fragment") {
  Fragments fixture;
  for (Version version = 1; version <= 4; ++version) {
    const Ids turn = {version % 2 == 1 ? 0 : 1};
    fixture.TrainsSteps(4);
    const CaptureDelta capture = fixture.Captures();
    CHECK(ListShardIds(capture.shards) == turn);
    CHECK(capture.contribution.base_version == version - 1);
    fixture.Decides(capture.contribution, version);
    CHECK(ListShardIds(fixture.PullsShards().shards) == turn);
    const AdoptPulled adopt = fixture.AdoptsPulled();
    CHECK(adopt.mode == AdoptMode::kReplace);
    CHECK(ListShardIds(adopt.shards) == turn);
    if (version % 2 == 0) fixture.Leases(20);
  }
}

TEST_CASE("a_missed_turn_is_pulled_too_and_its_unpushed_steps_are_kept") {
  Fragments fixture;
  fixture.TrainsSteps(4);
  const CaptureDelta capture = fixture.Captures();
  fixture.Decides(capture.contribution, 3);  // versions 1 and 2 were made without it
  CHECK(ListShardIds(fixture.PullsShards().shards) == Ids{1, 0});
  const AdoptPulled adopt = fixture.AdoptsPulled();
  CHECK(adopt.mode == AdoptMode::kCarry);
  CHECK(ListShardIds(adopt.shards) == Ids{1, 0});
  CHECK(fixture.Wants<TrainStep>().ranges.front().begin == 8);
}

TEST_CASE("a_pull_says_how_many_fragments_there_are_and_how_steps_are_encoded") {
  Fragments fixture;
  fixture.order.spec.outer.pull_encoding = Encoding::kInt4;
  fixture.Orders();
  fixture.TrainsSteps(4);
  const CaptureDelta capture = fixture.Captures();
  fixture.Decides(capture.contribution, 1);
  const StartPull pull = fixture.PullsShards();
  CHECK(pull.fragments == 2);
  CHECK(pull.encoding == Encoding::kInt4);
}

TEST_CASE("an_island_that_warms_up_again_pulls_and_replaces_all_layers") {
  Fragments fixture;
  fixture.TrainsSteps(4);
  const CaptureDelta capture = fixture.Captures();
  fixture.Decides(capture.contribution, 1, /*accepted=*/false, /*warm_up_again=*/true);
  CHECK(ListShardIds(fixture.PullsShards().shards) == Ids{1, 0});
  const AdoptPulled adopt = fixture.AdoptsPulled();
  CHECK(adopt.mode == AdoptMode::kReplace);
  CHECK(adopt.shards.empty());
  CHECK(adopt.reset_moments);
}

TEST_CASE("a_pull_of_a_fragment_is_of_no_use_after_a_loss_that_is_no_number") {
  Fragments fixture(Overlap::kCarry);
  fixture.TrainsSteps(4);
  const CaptureDelta capture = fixture.Captures();
  fixture.Decides(capture.contribution, 1);
  const StartPull part = fixture.Wants<StartPull>();
  CHECK(ListShardIds(part.shards) == Ids{0});
  fixture.Trains(std::nan(""));
  fixture.HandleEvent(PullDone{part.pull, 100});
  CHECK(fixture.Idle<AdoptPulled>());
  CHECK(ListShardIds(fixture.PullsShards().shards) == Ids{1, 0});
  CHECK(fixture.AdoptsPulled().shards.empty());
}

TEST_CASE("a_version_is_adopted_after_the_delay_and_not_before") {
  Fragments fixture(Overlap::kCarry);
  fixture.order.spec.outer.fragment_delay_steps = 2;
  fixture.Orders();
  fixture.TrainsSteps(4);
  CaptureDelta capture = fixture.Captures();
  fixture.Decides(capture.contribution, 1);
  fixture.PullsShards();
  CHECK(fixture.Idle<AdoptPulled>());
  fixture.TrainsSteps(2);
  CHECK(fixture.AdoptsPulled().mode == AdoptMode::kCarry);
  fixture.Leases(20);
  fixture.TrainsSteps(2);  // pushes stay four steps apart
  capture = fixture.Captures();
  CHECK(capture.contribution.base_version == 1);
  // The island waits where the version is late.
  fixture.TrainsSteps(2);
  CHECK(fixture.Idle<TrainStep>());
  fixture.Decides(capture.contribution, 2);
  fixture.PullsShards();
  CHECK(fixture.AdoptsPulled().version == 2);
}

TEST_CASE("with_a_blend_below_1_a_version_is_added_in_part") {
  Fragments fixture;
  fixture.order.spec.outer.fragment_blend = 0.5;
  fixture.Orders();
  fixture.TrainsSteps(4);
  const CaptureDelta capture = fixture.Captures();
  fixture.Decides(capture.contribution, 1);
  fixture.PullsShards();
  CHECK(fixture.AdoptsPulled().mode == AdoptMode::kCarry);
}

// ---- What is signed of it. ----

TEST_CASE("who_signs_has_digests_made_and_sends_them_with_each_request_until_it_is_decided") {
  Fixture fixture({}, /*signs=*/true);
  fixture.order.plan.number = 0;
  fixture.Starts();
  fixture.TrainsSteps(4);
  const CaptureDelta capture = fixture.Wants<CaptureDelta>();
  CHECK(capture.digests);
  CHECK(ListShardIds(capture.shards) == Ids{0, 1});  // also where nothing is quantised
  const std::vector<PartDigest> digests = {{0, 0, 100, "one"}, {1, 0, 50, "other"}};
  fixture.HandleEvent(DeltaCaptured{capture.contribution});
  fixture.HandleEvent(DeltaReady{capture.contribution, true, "", digests});
  for (int again = 0; again < 2; ++again) {
    const PushRequest push = fixture.Wants<PushRequest>();
    CHECK(push.parts == digests);
    REQUIRE(push.signature);
    CHECK(push.signature->build == "test");
    CHECK(push.signature->signature.empty());  // the shell's
    fixture.now += kRetryInterval;
    fixture.HandleEvent(Tick{});
  }
}

TEST_CASE("who_does_not_sign_has_no_digests_made") {
  Fixture fixture;
  fixture.Starts();
  fixture.TrainsSteps(4);
  CHECK_FALSE(fixture.Wants<CaptureDelta>().digests);
}

}  // namespace
}  // namespace atl::worker
