// Contributions with moments, and the average that is adopted.

#include <catch2/catch.hpp>

#include "worker/core/testing/fixture.h"

namespace atl::worker {
namespace {

// Version 2 is the first to average, and every second one after it.
struct Moments : Fixture {
  Moments() {
    order.spec.outer.overlap = Overlap::kNone;
    order.spec.outer.push_encoding = Encoding::kInt4;
    order.spec.outer.average_moments_steps = 8;
    order.moments_version = 2;
  }
  CaptureDelta Captures() {
    const CaptureDelta capture = Wants<CaptureDelta>();
    HandleEvent(DeltaCaptured{capture.contribution});
    HandleEvent(DeltaReady{capture.contribution});
    return capture;
  }
  bool PullsMoments() {
    const StartPull pull = Wants<StartPull>();
    HandleEvent(PullDone{pull.pull, 600});
    return pull.moments;
  }
  void Averages(const ContributionId& contribution, Version version) {
    order.averaged_version = version;
    order.averaged_steps = 4 * version;
    order.moments_version = version + 2;
    Decides(contribution, version);
  }
};

TEST_CASE("contributions_have_moments_from_the_ordered_version_on") {
  Moments fixture;
  fixture.Starts();
  fixture.TrainsSteps(4);
  const CaptureDelta first = fixture.Captures();
  CHECK(first.encoding == Encoding::kInt4);
  CHECK_FALSE(fixture.Wants<PushRequest>().moments);
  fixture.Decides(first.contribution, 1);
  fixture.Pulls(1);
  fixture.Adopts(1, AdoptMode::kReplace);
  fixture.TrainsSteps(4);
  const CaptureDelta second = fixture.Captures();
  CHECK(second.encoding == WithMoments(Encoding::kInt4));
  CHECK(second.shards.size() == 2);
  CHECK(fixture.Wants<PushRequest>().moments);
  fixture.IsGranted(second.contribution);
  CHECK(fixture.Wants<PushShards>().encoding == WithMoments(Encoding::kInt4));
}

TEST_CASE("an_average_is_pulled_and_adopted_with_its_version_and_not_again") {
  Moments fixture;
  fixture.order.moments_version = 1;
  fixture.Starts();
  fixture.TrainsSteps(4);
  fixture.Averages(fixture.Captures().contribution, 1);
  CHECK(fixture.PullsMoments());
  const AdoptPulled adopt = fixture.Wants<AdoptPulled>();
  CHECK(adopt.moments);
  CHECK(adopt.optimizer_steps == 4);
  fixture.HandleEvent(Adopted{1});
  fixture.TrainsSteps(4);
  fixture.Decides(fixture.Captures().contribution, 2);
  CHECK_FALSE(fixture.PullsMoments());
  CHECK_FALSE(fixture.Wants<AdoptPulled>().moments);
}

TEST_CASE("an_island_that_joins_adopts_the_newest_average") {
  Moments fixture;
  fixture.order.committed_version = 7;
  fixture.order.averaged_version = 6;
  fixture.order.averaged_steps = 30;  // rounds were longer
  fixture.order.moments_version = 8;
  fixture.Attaches();
  fixture.Orders();
  fixture.Prepares();
  CHECK(fixture.PullsMoments());
  const AdoptPulled adopt = fixture.Wants<AdoptPulled>();
  CHECK(adopt.moments);
  CHECK(adopt.optimizer_steps == 30);
}

TEST_CASE("without_averages_no_message_has_moments") {
  Fixture fixture;
  fixture.Starts();
  fixture.TrainsSteps(4);
  const CaptureDelta capture = fixture.Wants<CaptureDelta>();
  CHECK(capture.encoding == Encoding::kFloat32);
  fixture.HandleEvent(DeltaCaptured{capture.contribution});
  fixture.HandleEvent(DeltaReady{capture.contribution});
  CHECK_FALSE(fixture.Wants<PushRequest>().moments);
  fixture.Decides(capture.contribution, 1);
  CHECK_FALSE(fixture.Wants<StartPull>().moments);
}

TEST_CASE("initial_weights_have_no_moments") {
  Moments fixture;
  fixture.order.moments_version = 0;
  fixture.order.committed_version = kNoVersion;
  fixture.order.initialize = true;
  fixture.Attaches();
  fixture.Orders();
  fixture.Prepares();
  fixture.Wants<MakeInitialWeights>();
  fixture.HandleEvent(InitialWeightsMade{});
  CHECK(fixture.Captures().encoding == Encoding::kFloat32);
  CHECK_FALSE(fixture.Wants<PushRequest>().moments);
}

}  // namespace
}  // namespace atl::worker
