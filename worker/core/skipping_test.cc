// Steps that change nothing: data that is not finite, and gradients unlike those before.

#include <cmath>

#include "worker/core/leases.h"
#include "worker/core/testing/group_fixture.h"

namespace atl::worker {
namespace {

class Skipping : public Fixture {
 public:
  // The next step is skipped by the devices, with this loss and norm; returns it.
  TrainStep Skips(double loss, double norm) {
    const TrainStep step = Wants<TrainStep>();
    HandleEvent(StepDone{Sequences(step.ranges) * 10, loss, 0.1, false, 0, norm, true});
    return step;
  }
  TrainStep SkipsNotFinite() { return Skips(std::nan(""), std::nan("")); }
};

TEST_CASE("data_that_is_not_finite_twice_is_left_out_and_costs_its_steps_alone") {
  Skipping fixture;
  fixture.Starts();
  fixture.Trains();
  CHECK(fixture.SkipsNotFinite().ranges == Ranges{{2, 4}});
  SECTION("and trained on, where it was finite the second time") {
    CHECK(fixture.Trains().ranges == Ranges{{2, 4}});
    fixture.TrainsSteps(2);
    const PushRequest push = fixture.AwaitPushRequest();
    CHECK(push.skipped.empty());
    CHECK(push.consumed == Ranges{{0, 8}});
    CHECK(push.masked_tokens == 0);
  }
  SECTION("else the push names it, and no token of it counts in the loss") {
    CHECK(fixture.SkipsNotFinite().ranges == Ranges{{2, 4}});
    CHECK(fixture.Trains(4.0).ranges == Ranges{{4, 6}});
    fixture.Trains();
    const PushRequest push = fixture.AwaitPushRequest();
    CHECK(push.skipped == Ranges{{2, 4}});
    CHECK(push.consumed == Ranges{{0, 8}});
    CHECK(push.tokens == 80);
    CHECK(push.masked_tokens == 20);
    CHECK(push.train_loss == (2.0 + 4.0 + 2.0) / 3);
  }
}

TEST_CASE("the_log_has_ever_fewer_of_many_skipped_steps") {
  Skipping fixture;
  fixture.order.steps_this_round = 400;
  fixture.Starts();
  fixture.Leases(1000);
  fixture.Drop<WorkerLog>();
  for (int i = 0; i < 100; ++i) {
    fixture.Trains();
    fixture.SkipsNotFinite();
    fixture.SkipsNotFinite();
  }
  CHECK(fixture.Drop<WorkerLog>() == 4 + 4);  // those of 8, 16, 32 and 64
}

TEST_CASE("where_nothing_is_finite_the_parameters_are_at_fault_and_no_data_is_left_out") {
  Skipping fixture;
  fixture.Starts();
  fixture.Trains();
  for (const PositionRange& data : {PositionRange{2, 4}, {4, 6}}) {
    CHECK(fixture.SkipsNotFinite().ranges == Ranges{data});
    CHECK(fixture.SkipsNotFinite().ranges == Ranges{data});
  }
  CHECK(fixture.SkipsNotFinite().ranges == Ranges{{6, 8}});
  fixture.Pulls(0);
  CHECK(fixture.Wants<AdoptPulled>().reset_moments);
  fixture.HandleEvent(Adopted{0});
  CHECK(fixture.Trains().ranges == Ranges{{0, 2}});
  SECTION("nor was it") {
    fixture.TrainsSteps(3);
    CHECK(fixture.AwaitPushRequest().skipped.empty());
  }
  SECTION("but what is not finite on the committed parameters again is left out") {
    for (const PositionRange& data : {PositionRange{2, 4}, {4, 6}, {6, 8}}) {
      CHECK(fixture.SkipsNotFinite().ranges == Ranges{data});
    }
    fixture.Trains();
    CHECK(fixture.AwaitPushRequest().skipped == Ranges{{2, 8}});
  }
}

TEST_CASE("nothing_is_pushed_while_the_newest_step_was_skipped") {
  Skipping fixture;
  fixture.Starts();
  fixture.TrainsSteps(3);
  fixture.SkipsNotFinite();
  fixture.SkipsNotFinite();  // the fourth of the round's steps
  CHECK(fixture.Idle<CaptureDelta>());
  fixture.Trains();
  CHECK(fixture.AwaitPushRequest().inner_steps == 5);
}

TEST_CASE("an_island_whose_carried_steps_end_with_a_skipped_one_goes_on_with_one_more") {
  Skipping fixture;
  fixture.order.steps_this_round = 2;
  fixture.Starts();
  fixture.TrainsSteps(2);
  const PushRequest push = fixture.AwaitPushRequest();
  fixture.IsGranted(push.contribution);
  fixture.Pushes();
  for (int i = 1; i < kMaxCarriedRounds * 2; ++i) fixture.Trains();
  fixture.SkipsNotFinite();
  fixture.SkipsNotFinite();
  fixture.Decides(push.contribution, 1);
  fixture.Pulls(1);
  fixture.Adopts(1, AdoptMode::kCarry);
  CHECK(fixture.Idle<CaptureDelta>());
  fixture.Trains();
  fixture.Wants<CaptureDelta>();
}

TEST_CASE("a_gradient_unlike_those_before_is_skipped_if_the_job_says_how_unlike") {
  Skipping fixture;
  fixture.order.steps_this_round = 40;
  const double deviations = GENERATE(0.0, 6.0);
  fixture.order.spec.inner.skip_norm_deviations = deviations;
  fixture.Starts();
  fixture.Leases(200);
  for (int i = 0; i < 16; ++i) CHECK(fixture.Trains().norm_limit == 0);
  // All norms were 3: they count as if they varied by a tenth.
  CHECK(fixture.Trains().norm_limit == Approx(deviations == 0 ? 0 : 3.0 + 6 * 0.3));
  if (deviations == 0) return;
  const TrainStep skipped = fixture.Skips(2.5, 50);
  CHECK(fixture.Trains().ranges != skipped.ranges);  // that data is not tried again
  CHECK(fixture.Wants<TrainStep>().norm_limit == Approx(3.0 + 6 * 0.3));
}

}  // namespace
}  // namespace atl::worker
