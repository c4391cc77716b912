// Eager updates: during an exchange the island trains from the round's expected result.

#include <catch2/catch.hpp>

#include "worker/core/story.h"

namespace atl::worker {
namespace {

struct Eager : Story {
  Eager() {
    order.spec.outer.eager = true;
    share = 0.25;
    Starts();
  }
  // The delta becomes ready during a step.
  CaptureDelta Captures() {
    const CaptureDelta capture = Wants<CaptureDelta>();
    Happens(DeltaCaptured{capture.contribution});
    Happens(DeltaReady{capture.contribution});
    Wants<PushRequest>();
    return capture;
  }
  AdoptPulled Adopts(const ContributionId& contribution, Version version, bool accepted = true) {
    Decides(contribution, version, accepted);
    Pulls(version);
    Trains();
    const AdoptPulled adopt = Wants<AdoptPulled>();
    Happens(Adopted{version});
    return adopt;
  }
  // A round without eager update, for the first share.
  void FirstRound() {
    TrainsSteps(4);
    Adopts(Captures().contribution, 1);
    Leases(40);
    TrainsSteps(4);
  }
};

TEST_CASE("without_a_share_of_an_earlier_round_there_is_no_eager_update") {
  Eager story;
  story.TrainsSteps(4);
  const CaptureDelta capture = story.Captures();
  CHECK(capture.share == 0);
  const AdoptPulled adopt = story.Adopts(capture.contribution, 1);
  CHECK(story.Idle<ApplyEager>());
  CHECK_FALSE(adopt.eager);
  CHECK(adopt.share == 0.25);
}

TEST_CASE("an_eager_update_follows_the_delta_and_is_taken_back_by_the_adoption") {
  Eager story;
  story.FirstRound();
  const CaptureDelta capture = story.Captures();
  CHECK(capture.share == 0.25);
  CHECK(story.Idle<ApplyEager>());  // a step is under way
  story.Trains();
  CHECK(story.Wants<ApplyEager>().contribution == capture.contribution);
  CHECK(story.Idle<TrainStep>());
  story.Happens(EagerApplied{capture.contribution});
  story.Trains();
  CHECK(story.Idle<ApplyEager>());
  story.share = 0.5;
  const AdoptPulled adopt = story.Adopts(capture.contribution, 2);
  CHECK(adopt.mode == AdoptMode::kCarry);
  CHECK(adopt.eager);
  CHECK(adopt.share == 0.5);
}

TEST_CASE("a_rejected_contribution_has_no_share_and_the_next_uses_the_newest_known") {
  Eager story;
  story.FirstRound();
  CaptureDelta capture = story.Captures();
  story.Trains();
  story.Wants<ApplyEager>();
  story.Happens(EagerApplied{capture.contribution});
  const AdoptPulled adopt = story.Adopts(capture.contribution, 2, /*accepted=*/false);
  CHECK(adopt.eager);
  CHECK(adopt.share == 0);
  story.TrainsSteps(4);
  CHECK(story.Captures().share == 0.25);
}

TEST_CASE("a_version_that_comes_before_the_eager_update_is_adopted_without_it") {
  Eager story;
  story.FirstRound();
  const CaptureDelta capture = story.Captures();
  CHECK_FALSE(story.Adopts(capture.contribution, 2).eager);
  CHECK(story.Idle<ApplyEager>());
}

TEST_CASE("after_an_eager_update_that_failed_the_committed_version_replaces_the_parameters") {
  Eager story;
  story.FirstRound();
  const CaptureDelta capture = story.Captures();
  story.Trains();
  story.Wants<ApplyEager>();
  story.Happens(CommandFailed{"a member failed"});
  story.Passes(std::chrono::seconds(2));
  story.IsSetUp(/*kept=*/true);
  CHECK(story.Idle<ApplyEager>());
  CHECK(story.Idle<TrainStep>());
  story.Decides(capture.contribution, 2);
  story.Pulls(2);
  const AdoptPulled adopt = story.Wants<AdoptPulled>();
  CHECK(adopt.mode == AdoptMode::kReplace);
  CHECK_FALSE(adopt.eager);
}

}  // namespace
}  // namespace atl::worker
