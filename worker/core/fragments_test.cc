// Rounds that concern one fragment each; the delay and blend of adoptions.

#include <catch2/catch.hpp>
#include <cmath>

#include "worker/core/story.h"

namespace atl::worker {
namespace {

template <typename Shards>
std::vector<ShardId> IdsOf(const Shards& shards) {
  std::vector<ShardId> ids;
  for (const ShardPlacement& shard : shards) ids.push_back(shard.shard);
  return ids;
}

using Ids = std::vector<ShardId>;

// Two fragments: layer 0 has the turns of odd versions.
struct Fragments : Story {
  explicit Fragments(Overlap overlap = Overlap::kNone) {
    order.spec.outer.overlap = overlap;
    order.spec.outer.steps_per_round = 8;
    order.spec.outer.fragments = 2;
    Starts();
  }
  CaptureDelta Captures() {
    const CaptureDelta capture = Wants<CaptureDelta>();
    Happens(DeltaCaptured{capture.contribution});
    Happens(DeltaReady{capture.contribution});
    Wants<PushRequest>();
    return capture;
  }
  AdoptPulled AdoptsPulled() {
    const AdoptPulled adopt = Wants<AdoptPulled>();
    Happens(Adopted{adopt.version});
    return adopt;
  }
  StartPull PullsShards() {
    const StartPull pull = Wants<StartPull>();
    Happens(PullDone{pull.pull, 100});
    return pull;
  }
};

TEST_CASE("each_round_captures_pulls_and_adopts_its_fragment") {
  Fragments story;
  for (Version version = 1; version <= 4; ++version) {
    const Ids turn = {version % 2 == 1 ? 0 : 1};
    story.TrainsSteps(4);
    const CaptureDelta capture = story.Captures();
    CHECK(IdsOf(capture.shards) == turn);
    CHECK(capture.contribution.base_version == version - 1);
    story.Decides(capture.contribution, version);
    CHECK(IdsOf(story.PullsShards().shards) == turn);
    const AdoptPulled adopt = story.AdoptsPulled();
    CHECK(adopt.mode == AdoptMode::kReplace);
    CHECK(IdsOf(adopt.shards) == turn);
    if (version % 2 == 0) story.Leases(20);
  }
}

TEST_CASE("a_missed_turn_is_pulled_too_and_its_unpushed_steps_are_kept") {
  Fragments story;
  story.TrainsSteps(4);
  const CaptureDelta capture = story.Captures();
  story.Decides(capture.contribution, 3);  // versions 1 and 2 were made without it
  CHECK(IdsOf(story.PullsShards().shards) == Ids{1, 0});
  const AdoptPulled adopt = story.AdoptsPulled();
  CHECK(adopt.mode == AdoptMode::kCarry);
  CHECK(IdsOf(adopt.shards) == Ids{1, 0});
  CHECK(story.Wants<TrainStep>().ranges.front().begin == 8);
}

TEST_CASE("a_pull_says_how_many_fragments_there_are_and_how_steps_are_encoded") {
  Fragments story;
  story.order.spec.outer.pull_encoding = Encoding::kInt4;
  story.Orders();
  story.TrainsSteps(4);
  const CaptureDelta capture = story.Captures();
  story.Decides(capture.contribution, 1);
  const StartPull pull = story.PullsShards();
  CHECK(pull.fragments == 2);
  CHECK(pull.encoding == Encoding::kInt4);
}

TEST_CASE("an_island_that_warms_up_again_pulls_and_replaces_all_layers") {
  Fragments story;
  story.TrainsSteps(4);
  const CaptureDelta capture = story.Captures();
  story.Decides(capture.contribution, 1, /*accepted=*/false, /*warm_up_again=*/true);
  CHECK(IdsOf(story.PullsShards().shards) == Ids{1, 0});
  const AdoptPulled adopt = story.AdoptsPulled();
  CHECK(adopt.mode == AdoptMode::kReplace);
  CHECK(adopt.shards.empty());
  CHECK(adopt.reset_moments);
}

TEST_CASE("a_pull_of_a_fragment_is_of_no_use_after_a_loss_that_is_no_number") {
  Fragments story(Overlap::kCarry);
  story.TrainsSteps(4);
  const CaptureDelta capture = story.Captures();
  story.Decides(capture.contribution, 1);
  const StartPull part = story.Wants<StartPull>();
  CHECK(IdsOf(part.shards) == Ids{0});
  story.Trains(std::nan(""));
  story.Happens(PullDone{part.pull, 100});
  CHECK(story.Idle<AdoptPulled>());
  CHECK(IdsOf(story.PullsShards().shards) == Ids{1, 0});
  CHECK(story.AdoptsPulled().shards.empty());
}

TEST_CASE("a_version_is_adopted_after_the_delay_and_not_before") {
  Fragments story(Overlap::kCarry);
  story.order.spec.outer.fragment_delay_steps = 2;
  story.Orders();
  story.TrainsSteps(4);
  CaptureDelta capture = story.Captures();
  story.Decides(capture.contribution, 1);
  story.PullsShards();
  CHECK(story.Idle<AdoptPulled>());
  story.TrainsSteps(2);
  CHECK(story.AdoptsPulled().mode == AdoptMode::kCarry);
  story.Leases(20);
  story.TrainsSteps(2);  // pushes stay four steps apart
  capture = story.Captures();
  CHECK(capture.contribution.base_version == 1);
  // The island waits where the version is late.
  story.TrainsSteps(2);
  CHECK(story.Idle<TrainStep>());
  story.Decides(capture.contribution, 2);
  story.PullsShards();
  CHECK(story.AdoptsPulled().version == 2);
}

TEST_CASE("with_a_blend_below_1_a_version_is_added_in_part") {
  Fragments story;
  story.order.spec.outer.fragment_blend = 0.5;
  story.Orders();
  story.TrainsSteps(4);
  const CaptureDelta capture = story.Captures();
  story.Decides(capture.contribution, 1);
  story.PullsShards();
  CHECK(story.AdoptsPulled().mode == AdoptMode::kCarry);
}

}  // namespace
}  // namespace atl::worker
