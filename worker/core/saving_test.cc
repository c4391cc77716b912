// When an island's state is saved, and going on from a saved state.

#include <catch2/catch.hpp>

#include "worker/core/group_story.h"

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
    Happens(StateCopied{kept});
    return save.about;
  }
  void IsWhole(LocalCheckpoint about, int64_t number) {
    about.save = number;
    SavedState state;
    state.about = about;
    state.units = {{0, 0, {1}, 0, 10}};
    Drop<WorkerHeartbeat>();
    Happens(StateSaved{state, ""});
  }
};

TEST_CASE("State is saved after an adoption, and then after so many steps; one save at a time") {
  Saving story;
  story.Starts();
  LocalCheckpoint about = story.Saves();
  CHECK(about.base_version == 0);
  CHECK(about.inner_step == 0);
  CHECK(about.consumed.empty());
  story.IsWhole(about, 7);
  CHECK(story.Wants<WorkerHeartbeat>().progress->saved.at(0).about.save == 7);
  story.TrainsSteps(2);
  about = story.Saves();
  CHECK(about.inner_step == 2);
  CHECK(about.consumed == Ranges{{0, 4}});
  story.TrainsSteps(3);  // not while copies are on their way
  story.IsWhole(about, 8);
  story.Trains();
  CHECK(story.Saves().inner_step == 6);
}

TEST_CASE("Where nobody can keep copies, it is not asked again under the same plan") {
  Saving story(1);
  story.Starts();
  story.Saves(Kept::kNot);
  story.TrainsSteps(3);
  story.Wants<TrainStep>();
  story.PlansAgain(PlanOf(2, "w1", "w3"));
  story.Happens(CommandFailed{"interrupted"});
  story.SetsUp(2);
  CHECK(story.Saves().inner_step == 3);
}

// Steps until the next save, where copying holds up the first step for 5 ms.
int64_t StepsToNextSave(Saving& story, double first_step_seconds, double step_seconds) {
  story.Starts();
  story.Wants<SaveState>();
  story.Passes(std::chrono::milliseconds(5));
  story.Happens(StateCopied{Kept::kCopied});
  story.IsWhole({story.order.job, story.order.island}, 7);  // during the first step
  for (int64_t steps = 0; steps < 10; ++steps) {
    if (!story.Idle<SaveState>()) return steps;
    story.Wants<TrainStep>();
    story.Happens(StepDone{20, 2.0, steps == 0 ? first_step_seconds : step_seconds});
  }
  return 10;
}

TEST_CASE("By itself, an interval is long enough for saving to cost a fiftieth") {
  Saving story(0);
  CHECK(StepsToNextSave(story, 0.1, 0.1) == 3);  // of 2 ms each
}

TEST_CASE("A step that copying slowed down is a cost of saving, though the save ended before it") {
  Saving story(0);
  CHECK(StepsToNextSave(story, 0.11, 0.1) == 8);
}

TEST_CASE("disks_and_the_remote_tier_are_written_every_so_many_steps_beside_copies_in_memory") {
  Saving story(100);
  story.order.spec.checkpoint.remote = "s3://bucket/prefix";
  story.order.spec.schedule.checkpoint_every_steps = 3;
  story.Starts();
  story.Saves();
  story.TrainsSteps(3);
  CHECK(story.Wants<SaveState>().tier == Tier::kDisk);
  story.Happens(StateCopied{Kept::kCopied});
  CHECK(story.Wants<SaveState>().tier == Tier::kRemote);
  story.Happens(StateCopied{Kept::kCopied});
  story.Happens(StateSaved{{}, "w2: no space left", Tier::kDisk});
  CHECK(story.Wants<WorkerLog>().text ==
        "the island's state was not saved on disk: w2: no space left");
  story.TrainsSteps(2);
  CHECK(story.Idle<SaveState>());
  story.Trains();
  const SaveState save = story.Wants<SaveState>();  // the remote one is still on its way
  CHECK(save.tier == Tier::kDisk);
  CHECK(save.about.inner_step == 6);
  story.Happens(StateCopied{Kept::kCopied});
  CHECK(story.Idle<SaveState>());
}

TEST_CASE("State_that_every_element_has_several_owners_of_is_marked_once_a_version") {
  Saving story;
  story.Starts();
  story.Saves(Kept::kByOwners);
  story.TrainsSteps(10);
  CHECK(story.Idle<SaveState>());
}

TEST_CASE("a_new_leader_goes_on_further_than_the_save_with_the_data_of_the_steps_since") {
  Saving story(100);
  LocalCheckpoint about{story.order.job, story.order.island, 0, 40, {{0, 20}}, 7, 400};
  about.leased = {{20, 60}};
  story.order.resume = about;
  story.Attaches();
  story.Orders();
  story.Prepares();
  const Reconfigure setup = story.Wants<Reconfigure>();
  CHECK(setup.resume == 7);
  CHECK(setup.leased == about.leased);
  Reconfigured done{setup.plan.number, true};
  done.resumed = true;
  done.beyond = {{41, {{20, 24}}, 0.1, 40}, {42, {{24, 30}}, 0.1}};
  story.Happens(done);
  story.Pulls(0);
  const AdoptPulled adopt = story.Wants<AdoptPulled>();
  CHECK(adopt.mode == AdoptMode::kKeep);
  CHECK(adopt.consumed == Ranges{{0, 30}});
  story.Happens(Adopted{0});
  const SaveState save = story.Wants<SaveState>();
  CHECK(save.about.inner_step == 42);
  CHECK(save.about.consumed == Ranges{{0, 30}});
  CHECK(save.about.loss_times_tokens == Approx((400 + 40) * 30 / 24.0));
  story.Happens(StateCopied{Kept::kByOwners});
  CHECK(story.Wants<TrainStep>().ranges.front().begin == 30);
}

TEST_CASE("a_worker_alone_under_a_plan_gets_SIGTERM_and_stops_when_its_units_are_on_the_disk") {
  Saving story(100);
  story.order.spec.schedule.checkpoint_every_steps = 100;
  story.Starts();
  story.Saves();
  story.TrainsSteps(2);
  story.Wants<TrainStep>();
  story.order.shared = false;
  story.PlansAgain(Alone(2, "w1"));
  story.Happens(CommandFailed{"interrupted"});
  story.SetsUp(2);
  story.Wants<TrainStep>();
  story.Happens(ShutdownRequested{"SIGTERM"});
  story.Happens(StepDone{20, 2.0, 0.1});
  const SaveState save = story.Wants<SaveState>();
  CHECK(save.tier == Tier::kDisk);
  CHECK(save.about.inner_step == 3);
  story.Happens(StateCopied{Kept::kCopied});
  CHECK(story.Idle<Stop>());
  story.Happens(StateSaved{{}, "", Tier::kDisk});
  CHECK(story.Wants<Stop>().exit_code == 0);
}

TEST_CASE(
    "A leader that is to go on from a saved state has it set up, pulls its base, and trains") {
  Saving story;
  LocalCheckpoint resume{story.order.job, story.order.island, 0, 12, {{0, 4}}};
  resume.save = 7;
  story.order.resume = resume;
  const bool whole = GENERATE(true, false);
  story.Attaches();
  story.Orders();
  story.Prepares();
  const Reconfigure setup = story.Wants<Reconfigure>();
  CHECK(setup.resume == 7);
  Reconfigured done{1, whole, false, ""};
  done.resumed = whole;
  story.Happens(done);
  story.Pulls(0);
  const AdoptPulled adopt = story.Wants<AdoptPulled>();
  CHECK(adopt.mode == (whole ? AdoptMode::kKeep : AdoptMode::kReplace));
  if (whole) CHECK(adopt.keep_residual);  // the save's
  story.Happens(Adopted{0});
  const LocalCheckpoint about = story.Saves();
  CHECK(about.consumed == (whole ? Ranges{{0, 4}} : Ranges{}));
  CHECK(about.inner_step == (whole ? 12 : 0));
  if (!whole) {  // its data is trained on again
    CHECK(story.Trains().ranges == Ranges{{0, 2}});
    return;
  }
  // In a later plan it is not gone back to.
  story.order.plan = PlanOf(2, "w1", "w3");
  story.Orders();
  CHECK(story.Wants<Reconfigure>().resume == 0);
}

TEST_CASE("A version that was committed since takes the place of a saved state's base") {
  Saving story;
  LocalCheckpoint resume{story.order.job, story.order.island, 0, 12, {{0, 4}}};
  resume.save = 7;
  story.order.resume = resume;
  story.Attaches();
  story.Orders();
  story.Prepares();
  Reconfigured done{1, true, false, ""};
  done.resumed = true;
  story.Wants<Reconfigure>();
  story.Happens(done);
  const StartPull pull = story.Wants<StartPull>();
  story.order.committed_version = 1;
  story.Orders();
  story.Happens(PullFailed{pull.pull, PullFailure::kSuperseded, 1, "it is at version 1"});
  story.Pulls(1);
  story.Adopts(1, AdoptMode::kReplace);
  CHECK(story.Saves().consumed.empty());
  CHECK(story.Trains().ranges == Ranges{{0, 2}});
}

TEST_CASE("a_newer_plan_before_the_pull_ends_keeps_the_resumed_state") {
  Saving story;
  LocalCheckpoint resume{story.order.job, story.order.island, 0, 12, {{0, 4}}};
  resume.save = 7;
  story.order.resume = resume;
  story.Attaches();
  story.Orders();
  story.Prepares();
  Reconfigured done{1, true, false, ""};
  done.resumed = true;
  story.Wants<Reconfigure>();
  story.Happens(done);
  story.Wants<StartPull>();
  story.order.plan.number = 2;
  story.Orders();
  CHECK(story.Wants<Reconfigure>().resume == 7);
  story.Happens(Reconfigured{2, true, false, ""});  // no layer has moved
  story.Pulls(0);
  story.Adopts(0, AdoptMode::kKeep);
}

}  // namespace
}  // namespace atl::worker
