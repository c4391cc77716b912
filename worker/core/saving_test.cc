// When an island's state is saved, and going on from a saved state.

#include <catch2/catch.hpp>
#include <limits>

#include "worker/core/testing/group_fixture.h"

namespace atl::worker {
namespace {

class Saving : public Group {
 public:
  explicit Saving(int64_t every = 2) {
    order.spec.checkpoint.peer_copies = 1;
    order.spec.checkpoint.peer_every_steps = every;
    order.steps_this_round = 100;
  }
  LocalCheckpoint Saves(Kept kept = Kept::kCopied) {
    const SaveState save = Wants<SaveState>();
    CHECK(save.tier == Tier::kMemory);
    HandleEvent(StateCopied{kept});
    return save.about;
  }
  void IsWhole(LocalCheckpoint about, int64_t number) {
    about.save = number;
    SavedState state;
    state.about = about;
    state.units = {{0, 0, {1}, 0, 10}};
    Drop<WorkerHeartbeat>();
    HandleEvent(StateSaved{state, ""});
  }
};

TEST_CASE("State is saved after an adoption, and then after so many steps; one save at a time") {
  Saving fixture;
  fixture.Starts();
  LocalCheckpoint about = fixture.Saves();
  CHECK(about.base_version == 0);
  CHECK(about.inner_step == 0);
  CHECK(about.consumed.empty());
  fixture.IsWhole(about, 7);
  CHECK(fixture.Wants<WorkerHeartbeat>().progress->saved.at(0).about.save == 7);
  fixture.TrainsSteps(2);
  about = fixture.Saves();
  CHECK(about.inner_step == 2);
  CHECK(about.consumed == Ranges{{0, 4}});
  fixture.TrainsSteps(3);  // not while copies are on their way
  fixture.IsWhole(about, 8);
  fixture.Trains();
  CHECK(fixture.Saves().inner_step == 6);
}

TEST_CASE("Where no member can keep copies, saving is not retried under the same plan") {
  Saving fixture(1);
  fixture.Starts();
  fixture.Saves(Kept::kNot);
  fixture.TrainsSteps(3);
  fixture.Wants<TrainStep>();
  fixture.PlansAgain(MakeTwoStagePlan(2, "w1", "w3"));
  fixture.HandleEvent(CommandFailed{"interrupted"});
  fixture.SetsUp(2);
  CHECK(fixture.Saves().inner_step == 3);
}

// Steps until the next save, where copying stalls the first step for 5 ms.
int64_t StepsToNextSave(Saving& fixture, double first_step_seconds, double step_seconds) {
  fixture.Starts();
  fixture.Wants<SaveState>();
  fixture.Passes(std::chrono::milliseconds(5));
  fixture.HandleEvent(StateCopied{Kept::kCopied});
  fixture.IsWhole({fixture.order.job, fixture.order.island}, 7);  // during the first step
  for (int64_t steps = 0; steps < 10; ++steps) {
    if (!fixture.Idle<SaveState>()) return steps;
    fixture.Wants<TrainStep>();
    fixture.HandleEvent(StepDone{20, 2.0, steps == 0 ? first_step_seconds : step_seconds});
  }
  return 10;
}

TEST_CASE("By itself, an interval is long enough for saving to cost a fiftieth") {
  Saving fixture(0);
  CHECK(StepsToNextSave(fixture, 0.1, 0.1) == 3);  // of 2 ms each
}

TEST_CASE("A step that copying slowed down is a cost of saving, though the save ended before it") {
  Saving fixture(0);
  CHECK(StepsToNextSave(fixture, 0.11, 0.1) == 8);
}

TEST_CASE("disks_and_the_remote_tier_are_written_every_so_many_steps_beside_copies_in_memory") {
  Saving fixture(100);
  fixture.order.spec.checkpoint.remote = "s3://bucket/prefix";
  fixture.order.spec.schedule.checkpoint_every_steps = 3;
  fixture.Starts();
  fixture.Saves();
  fixture.TrainsSteps(3);
  CHECK(fixture.Wants<SaveState>().tier == Tier::kDisk);
  fixture.HandleEvent(StateCopied{Kept::kCopied});
  CHECK(fixture.Wants<SaveState>().tier == Tier::kRemote);
  fixture.HandleEvent(StateCopied{Kept::kCopied});
  fixture.HandleEvent(StateSaved{{}, "w2: no space left", Tier::kDisk});
  CHECK(fixture.Wants<WorkerLog>().text ==
        "the island's state was not saved on disk: w2: no space left");
  fixture.TrainsSteps(2);
  CHECK(fixture.Idle<SaveState>());
  fixture.Trains();
  const SaveState save = fixture.Wants<SaveState>();  // the remote one is still on its way
  CHECK(save.tier == Tier::kDisk);
  CHECK(save.about.inner_step == 6);
  fixture.HandleEvent(StateCopied{Kept::kCopied});
  CHECK(fixture.Idle<SaveState>());
}

TEST_CASE("State_that_every_element_has_several_owners_of_is_marked_once_a_version") {
  Saving fixture;
  fixture.Starts();
  fixture.Saves(Kept::kByOwners);
  fixture.TrainsSteps(10);
  CHECK(fixture.Idle<SaveState>());
}

TEST_CASE("a_new_leader_goes_on_further_than_the_save_with_the_data_of_the_steps_since") {
  Saving fixture(100);
  LocalCheckpoint about{fixture.order.job, fixture.order.island, 0, 40, {{0, 20}}, 7, 400};
  about.leased = {{20, 60}};
  fixture.order.resume = about;
  fixture.Attaches();
  fixture.Orders();
  fixture.Prepares();
  const Reconfigure setup = fixture.Wants<Reconfigure>();
  CHECK(setup.resume == 7);
  CHECK(setup.leased == about.leased);
  CHECK(setup.committed == fixture.order.committed_version);
  Reconfigured done{setup.plan.number, true};
  done.resumed = true;
  done.beyond = {{41, {{20, 22}}, 0.1, 0, 40}, {42, {{22, 24}}, 0.1}, {43, {{24, 30}}, 0.1}};
  done.beyond[1].norm_limit = std::numeric_limits<double>::min();  // it was skipped
  fixture.HandleEvent(done);
  fixture.Pulls(0);
  const AdoptPulled adopt = fixture.Wants<AdoptPulled>();
  CHECK(adopt.mode == AdoptMode::kKeep);
  CHECK(adopt.trained == Ranges{{0, 22}, {24, 30}});
  fixture.HandleEvent(Adopted{0});
  const SaveState save = fixture.Wants<SaveState>();
  CHECK(save.about.inner_step == 43);
  CHECK(save.about.consumed == Ranges{{0, 30}});
  CHECK(save.about.skipped == Ranges{{22, 24}});
  CHECK(save.about.loss_times_tokens == Approx((400 + 40) * 28 / 22.0));
  fixture.HandleEvent(StateCopied{Kept::kByOwners});
  CHECK(fixture.Wants<TrainStep>().ranges.front().begin == 30);
}

TEST_CASE("a_worker_alone_under_a_plan_gets_SIGTERM_and_stops_when_its_units_are_on_the_disk") {
  Saving fixture(100);
  fixture.order.spec.schedule.checkpoint_every_steps = 100;
  fixture.Starts();
  fixture.Saves();
  fixture.TrainsSteps(2);
  fixture.Wants<TrainStep>();
  fixture.order.shared = false;
  fixture.PlansAgain(Alone(2, "w1"));
  fixture.HandleEvent(CommandFailed{"interrupted"});
  fixture.SetsUp(2);
  fixture.Wants<TrainStep>();
  fixture.HandleEvent(ShutdownRequested{"SIGTERM"});
  fixture.HandleEvent(StepDone{20, 2.0, 0.1});
  const SaveState save = fixture.Wants<SaveState>();
  CHECK(save.tier == Tier::kDisk);
  CHECK(save.about.inner_step == 3);
  fixture.HandleEvent(StateCopied{Kept::kCopied});
  CHECK(fixture.Idle<Stop>());
  fixture.HandleEvent(StateSaved{{}, "", Tier::kDisk});
  CHECK(fixture.Wants<Stop>().exit_code == 0);
}

TEST_CASE(
    "A leader that is to go on from a saved state has it set up, pulls its base, and trains") {
  Saving fixture;
  LocalCheckpoint resume{fixture.order.job, fixture.order.island, 0, 12, {{0, 4}}};
  resume.save = 7;
  fixture.order.resume = resume;
  const bool whole = GENERATE(true, false);
  fixture.Attaches();
  fixture.Orders();
  fixture.Prepares();
  const Reconfigure setup = fixture.Wants<Reconfigure>();
  CHECK(setup.resume == 7);
  Reconfigured done{1, whole, false, ""};
  done.resumed = whole;
  fixture.HandleEvent(done);
  fixture.Pulls(0);
  const AdoptPulled adopt = fixture.Wants<AdoptPulled>();
  CHECK(adopt.mode == (whole ? AdoptMode::kKeep : AdoptMode::kReplace));
  if (whole) CHECK(adopt.keep_residual);  // the save's
  fixture.HandleEvent(Adopted{0});
  const LocalCheckpoint about = fixture.Saves();
  CHECK(about.consumed == (whole ? Ranges{{0, 4}} : Ranges{}));
  CHECK(about.inner_step == (whole ? 12 : 0));
  if (!whole) {  // its data is trained on again
    CHECK(fixture.Trains().ranges == Ranges{{0, 2}});
    return;
  }
  // A later plan does not resume it.
  fixture.order.plan = MakeTwoStagePlan(2, "w1", "w3");
  fixture.Orders();
  CHECK(fixture.Wants<Reconfigure>().resume == 0);
}

TEST_CASE("what_was_left_out_is_saved_with_the_state_and_known_after_going_on_from_it") {
  Saving fixture;
  LocalCheckpoint resume{fixture.order.job, fixture.order.island, 0, 12, {{0, 4}}, 7, 40.0};
  resume.skipped = {{2, 4}};
  fixture.order.resume = resume;
  fixture.Attaches();
  fixture.Orders();
  fixture.Prepares();
  Reconfigured done{fixture.Wants<Reconfigure>().plan.number, true};
  done.resumed = true;
  fixture.HandleEvent(done);
  fixture.Pulls(0);
  CHECK(fixture.Wants<AdoptPulled>().trained == Ranges{{0, 2}});
  fixture.HandleEvent(Adopted{0});
  CHECK(fixture.Saves().skipped == Ranges{{2, 4}});
}

TEST_CASE("A version that was committed since takes the place of a saved state's base") {
  Saving fixture;
  LocalCheckpoint resume{fixture.order.job, fixture.order.island, 0, 12, {{0, 4}}};
  resume.save = 7;
  fixture.order.resume = resume;
  fixture.Attaches();
  fixture.Orders();
  fixture.Prepares();
  Reconfigured done{1, true, false, ""};
  done.resumed = true;
  fixture.Wants<Reconfigure>();
  fixture.HandleEvent(done);
  const StartPull pull = fixture.Wants<StartPull>();
  fixture.order.committed_version = 1;
  fixture.Orders();
  fixture.HandleEvent(PullFailed{pull.pull, PullFailure::kSuperseded, 1, "it is at version 1"});
  fixture.Pulls(1);
  fixture.Adopts(1, AdoptMode::kReplace);
  CHECK(fixture.Saves().consumed.empty());
  CHECK(fixture.Trains().ranges == Ranges{{0, 2}});
}

TEST_CASE("a_newer_plan_before_the_pull_ends_keeps_the_resumed_state") {
  Saving fixture;
  LocalCheckpoint resume{fixture.order.job, fixture.order.island, 0, 12, {{0, 4}}};
  resume.save = 7;
  fixture.order.resume = resume;
  fixture.Attaches();
  fixture.Orders();
  fixture.Prepares();
  Reconfigured done{1, true, false, ""};
  done.resumed = true;
  fixture.Wants<Reconfigure>();
  fixture.HandleEvent(done);
  fixture.Wants<StartPull>();
  fixture.order.plan.number = 2;
  fixture.Orders();
  CHECK(fixture.Wants<Reconfigure>().resume == 7);
  fixture.HandleEvent(Reconfigured{2, true, false, ""});  // no layer has moved
  fixture.Pulls(0);
  fixture.Adopts(0, AdoptMode::kKeep);
}

}  // namespace
}  // namespace atl::worker
