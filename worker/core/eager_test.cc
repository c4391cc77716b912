// Eager updates: during an exchange the island trains from the round's expected result.

#include <catch2/catch.hpp>

#include "worker/core/fixture.h"

namespace atl::worker {
namespace {

struct Eager : Fixture {
  Eager() {
    order.spec.outer.eager = true;
    share = 0.25;
    Starts();
  }
  // The delta becomes ready during a step.
  CaptureDelta Captures() {
    const CaptureDelta capture = Wants<CaptureDelta>();
    HandleEvent(DeltaCaptured{capture.contribution});
    HandleEvent(DeltaReady{capture.contribution});
    Wants<PushRequest>();
    return capture;
  }
  AdoptPulled Adopts(const ContributionId& contribution, Version version, bool accepted = true) {
    Decides(contribution, version, accepted);
    Pulls(version);
    Trains();
    const AdoptPulled adopt = Wants<AdoptPulled>();
    HandleEvent(Adopted{version});
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
  Eager fixture;
  fixture.TrainsSteps(4);
  const CaptureDelta capture = fixture.Captures();
  CHECK(capture.share == 0);
  const AdoptPulled adopt = fixture.Adopts(capture.contribution, 1);
  CHECK(fixture.Idle<ApplyEager>());
  CHECK_FALSE(adopt.eager);
  CHECK(adopt.share == 0.25);
}

TEST_CASE("an_eager_update_follows_the_delta_and_is_taken_back_by_the_adoption") {
  Eager fixture;
  fixture.FirstRound();
  const CaptureDelta capture = fixture.Captures();
  CHECK(capture.share == 0.25);
  CHECK(fixture.Idle<ApplyEager>());  // a step is under way
  fixture.Trains();
  CHECK(fixture.Wants<ApplyEager>().contribution == capture.contribution);
  CHECK(fixture.Idle<TrainStep>());
  fixture.HandleEvent(EagerApplied{capture.contribution});
  fixture.Trains();
  CHECK(fixture.Idle<ApplyEager>());
  fixture.share = 0.5;
  const AdoptPulled adopt = fixture.Adopts(capture.contribution, 2);
  CHECK(adopt.mode == AdoptMode::kCarry);
  CHECK(adopt.eager);
  CHECK(adopt.share == 0.5);
}

TEST_CASE("a_rejected_contribution_has_no_share_and_the_next_uses_the_newest_known") {
  Eager fixture;
  fixture.FirstRound();
  CaptureDelta capture = fixture.Captures();
  fixture.Trains();
  fixture.Wants<ApplyEager>();
  fixture.HandleEvent(EagerApplied{capture.contribution});
  const AdoptPulled adopt = fixture.Adopts(capture.contribution, 2, /*accepted=*/false);
  CHECK(adopt.eager);
  CHECK(adopt.share == 0);
  fixture.TrainsSteps(4);
  CHECK(fixture.Captures().share == 0.25);
}

TEST_CASE("a_version_that_comes_before_the_eager_update_is_adopted_without_it") {
  Eager fixture;
  fixture.FirstRound();
  const CaptureDelta capture = fixture.Captures();
  CHECK_FALSE(fixture.Adopts(capture.contribution, 2).eager);
  CHECK(fixture.Idle<ApplyEager>());
}

TEST_CASE("after_an_eager_update_that_failed_the_committed_version_replaces_the_parameters") {
  Eager fixture;
  fixture.FirstRound();
  const CaptureDelta capture = fixture.Captures();
  fixture.Trains();
  fixture.Wants<ApplyEager>();
  fixture.HandleEvent(CommandFailed{"a member failed"});
  fixture.Passes(std::chrono::seconds(2));
  fixture.IsSetUp(/*kept=*/true);
  CHECK(fixture.Idle<ApplyEager>());
  CHECK(fixture.Idle<TrainStep>());
  fixture.Decides(capture.contribution, 2);
  fixture.Pulls(2);
  const AdoptPulled adopt = fixture.Wants<AdoptPulled>();
  CHECK(adopt.mode == AdoptMode::kReplace);
  CHECK_FALSE(adopt.eager);
}

}  // namespace
}  // namespace atl::worker
