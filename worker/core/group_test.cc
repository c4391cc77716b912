// Islands of several workers: w1 leads, w2 follows, or w1 follows w2.

#include <catch2/catch.hpp>

#include "worker/core/stage_link_log.h"
#include "worker/core/testing/group_fixture.h"

namespace atl::worker {
namespace {

TEST_CASE("A leader sets its island up before anything else, and trains as usual") {
  Group fixture;
  fixture.Starts();
  fixture.TrainsSteps(4);
  const PushRequest request = fixture.AwaitPushRequest();
  CHECK(request.consumed == Ranges{{0, 8}});
  CHECK(fixture.Idle<Reconfigure>());
  fixture.Drop<WorkerHeartbeat>();
  fixture.Passes(kHeartbeatInterval);
  CHECK(fixture.Wants<WorkerHeartbeat>().progress->plan_number == 1);
}

TEST_CASE("A new plan interrupts the step; when the state is kept, the step is replayed") {
  Group fixture;
  fixture.Starts();
  fixture.TrainsSteps(2);
  const TrainStep step = fixture.Wants<TrainStep>();
  CHECK(step.ranges == Ranges{{4, 6}});
  fixture.PlansAgain(Alone(2, "w1"));
  CHECK(fixture.Idle<Reconfigure>());  // the step has not ended yet
  SECTION("it was too late: the step counts") {
    fixture.HandleEvent(StepDone{20, 2.0, 0.1, false});
    fixture.SetsUp(2);
    CHECK(fixture.Trains().ranges == Ranges{{6, 8}});
  }
  SECTION("it changed nothing") {
    fixture.HandleEvent(CommandFailed{"interrupted"});
    CHECK(fixture.Idle<WorkerLog>());  // as intended: no failure
    fixture.SetsUp(2);
    CHECK(fixture.Trains().ranges == Ranges{{4, 6}});
    CHECK(fixture.Trains().ranges == Ranges{{6, 8}});
  }
  SECTION("every device had taken it") {
    fixture.HandleEvent(CommandFailed{"interrupted"});
    fixture.SetsUp(2, true, true);
    CHECK(fixture.Trains().ranges == Ranges{{6, 8}});
  }
  const PushRequest request = fixture.AwaitPushRequest();
  CHECK(request.consumed == Ranges{{0, 8}});  // each sequence once
  CHECK(request.inner_steps == 4);
  CHECK(request.tokens == 80);
}

TEST_CASE("a_leader_whose_island_has_pushed_under_another_waits_for_the_version_made_of_it") {
  Group fixture;
  const std::vector<ShardId> pull_order = std::exchange(fixture.order.pull_order, {});
  fixture.Attaches();
  fixture.Orders();
  fixture.Prepares();
  const Reconfigure setup = fixture.Wants<Reconfigure>();
  CHECK(setup.committed == kNoVersion);  // the devices' moments have the steps that are pushed
  fixture.HandleEvent(Reconfigured{1, true});
  CHECK(fixture.Idle<StartPull>());
  fixture.Leases(20);
  fixture.Passes(kRetryInterval);
  CHECK(fixture.Idle<StartPull>());
  CHECK(fixture.Idle<TrainStep>());
  fixture.order.pull_order = pull_order;
  fixture.order.committed_version = 1;
  fixture.Orders();
  fixture.Pulls(1);
  fixture.Adopts(1, AdoptMode::kReplace);
  fixture.Trains();
}

TEST_CASE("A late order of the job before does not take a worker from its island") {
  FollowerFixture fixture;
  fixture.Starts();
  const MemberOrder before = fixture.member;
  fixture.order.job = "job-2";
  fixture.order.plan = IslandPlan();
  fixture.Orders();
  fixture.Wants<Unfollow>();
  fixture.Prepares();
  fixture.Pulls(fixture.order.committed_version);
  fixture.Adopts(fixture.order.committed_version, AdoptMode::kReplace);
  fixture.Leases(20);
  fixture.Trains();
  MemberOrder late = before;
  SECTION("one that was sent again, and overtaken by the order to train") {
    fixture.order.sequence += 5;
    fixture.Orders();
    late.sequence = fixture.order.sequence - 1;
    fixture.Says(late);
    CHECK(fixture.Idle<InterruptStep>());
    CHECK(fixture.Trains().ranges == Ranges{{2, 4}});
  }
  SECTION("but a newer one does") {
    late.sequence = fixture.order.sequence + 1;
    fixture.Says(late);
    CHECK(fixture.Next<InterruptStep>().has_value());
  }
}

TEST_CASE("Links are measured for the coordinator, but not by a worker that is in an island") {
  Group fixture;
  const MeasureLinks request{
      "job-1", 3, {{"w1", 5, "tcp://w1", ""}, {"w2", 7, "tcp://w2", ""}}, "w1"};
  fixture.Attaches();
  fixture.Says(request);
  CHECK(fixture.Wants<MeasureLinks>().request == 3);
  fixture.HandleEvent(LinksMeasured{"job-1", 3, {{"w1", "w2", 1000, 1e8, 0.01, 20}}, ""});
  CHECK(fixture.Wants<LinksMeasured>().links[0].to == "w2");
  fixture.Orders();
  fixture.Says(request);
  CHECK(fixture.Idle<MeasureLinks>());
  MeasureLinks during_steps = request;
  during_steps.during_steps = true;
  fixture.Says(during_steps);
  CHECK(fixture.Wants<MeasureLinks>().during_steps);
  MeasureLinks probe = request;
  probe.probe = true;
  fixture.Says(probe);
  CHECK(fixture.Wants<MeasureLinks>().probe);
}

TEST_CASE("A step is traced by the leader of that island and generation alone") {
  Group fixture;
  fixture.Attaches();
  fixture.Says(TraceNextStep{"job-1", 0, 1, 8});
  CHECK(fixture.Idle<TraceNextStep>());
  CHECK(fixture.Wants<StepTraced>().trouble.find("does not lead island 0") != std::string::npos);
  fixture.Orders();
  fixture.Says(TraceNextStep{"job-1", fixture.order.island, 999, 9});
  CHECK(fixture.Wants<StepTraced>().request == 9);
  fixture.Says(TraceNextStep{"job-1", fixture.order.island, fixture.order.generation, 10});
  CHECK(fixture.Wants<TraceNextStep>().request == 10);
  StepTraced traced{"job-1", 10, "", {}};
  traced.trace.step = 4;
  fixture.HandleEvent(traced);
  CHECK(fixture.Wants<StepTraced>().trace.step == 4);
}

TEST_CASE("What a worker measured of its devices goes with its answer") {
  Group fixture;
  fixture.Attaches();
  fixture.Says(PrepareJob{fixture.order.job, fixture.order.spec});
  fixture.Wants<Prepare>();
  DeviceProfile profile;
  profile.device = "w1/0";
  fixture.HandleEvent(Prepared{fixture.order.job, {fixture.order.layers, 1000, 100, 7}, {profile}});
  CHECK(fixture.Wants<JobPrepared>().profiles == std::vector<DeviceProfile>{profile});
}

TEST_CASE("A new plan between steps: set up, then on") {
  Group fixture;
  fixture.Starts();
  fixture.order.run = RunState::kPause;
  fixture.Orders();
  fixture.Trains();
  fixture.order.plan = Alone(2, "w1");
  fixture.order.run = RunState::kRun;
  fixture.Orders();
  CHECK(fixture.Idle<InterruptStep>());
  fixture.SetsUp(2);
  CHECK(fixture.Trains().ranges == Ranges{{2, 4}});
}

TEST_CASE("State that is lost: back to the committed version, on the same sequences") {
  Group fixture;
  fixture.Starts();
  fixture.TrainsSteps(2);
  fixture.Wants<TrainStep>();
  fixture.PlansAgain(Alone(2, "w1"));
  fixture.HandleEvent(CommandFailed{"interrupted"});
  fixture.SetsUp(2, false);
  CHECK(fixture.Wants<WorkerLog>().text ==
        "the state of 2 steps since version 0 is lost (no member holds layer 1): back to the "
        "committed version");
  fixture.Pulls(0);
  const AdoptPulled adopt = fixture.Wants<AdoptPulled>();
  CHECK(adopt.mode == AdoptMode::kReplace);
  CHECK_FALSE(adopt.reset_moments);  // a local checkpoint's will do
  fixture.HandleEvent(Adopted{0});
  CHECK(fixture.Trains().ranges == Ranges{{0, 2}});
  fixture.TrainsSteps(3);
  CHECK(fixture.AwaitPushRequest().consumed == Ranges{{0, 8}});
}

TEST_CASE("A contribution in flight outlives the loss of the devices' state") {
  Group fixture;
  fixture.Starts();
  fixture.TrainsSteps(4);
  const PushRequest request = fixture.AwaitPushRequest();
  fixture.IsGranted(request.contribution);
  fixture.Trains();
  fixture.Wants<TrainStep>();
  fixture.PlansAgain(Alone(2, "w1"));
  fixture.HandleEvent(CommandFailed{"interrupted"});
  fixture.SetsUp(2, false);
  CHECK(fixture.Idle<TrainStep>());  // there is nothing to train on until the next version
  fixture.Pushes();
  fixture.Decides(request.contribution, 1);
  fixture.Pulls(1);
  fixture.Adopts(1, AdoptMode::kReplace);
  CHECK(fixture.Trains().ranges == Ranges{{8, 10}});
}

TEST_CASE("Whatever fails under a plan, the island is set up again before the next command") {
  Group fixture;
  fixture.Starts();
  fixture.Wants<TrainStep>();
  fixture.HandleEvent(CommandFailed{"w2/0: connection reset"});
  CHECK(fixture.Wants<WorkerLog>().text != "");
  CHECK(fixture.Idle<Reconfigure>());  // not at once
  CHECK(fixture.GetActivity() == "failed; retrying in 1 s: w2/0: connection reset");
  fixture.Passes(std::chrono::seconds(1));
  fixture.Wants<Reconfigure>();
  fixture.HandleEvent(CommandFailed{"w2 does not answer"});
  SECTION("and again") {
    fixture.Passes(std::chrono::seconds(1));
    fixture.SetsUp(1);
  }
  SECTION("at once when there is a new plan") {
    fixture.order.plan = Alone(2, "w1");
    fixture.Orders();
    fixture.SetsUp(2);
  }
  CHECK(fixture.Trains().ranges == Ranges{{0, 2}});
}

TEST_CASE(
    "What fails over and over is in the job's log once, and again when steps have succeeded") {
  Group fixture;
  fixture.Starts();
  fixture.Drop<WorkerLog>();
  for (int tries = 0; tries < 5; ++tries) {
    fixture.Wants<TrainStep>();
    fixture.HandleEvent(CommandFailed{"w2/0: connection reset"});
    fixture.Passes(std::chrono::seconds(1));
    fixture.Wants<Reconfigure>();
    fixture.HandleEvent(CommandFailed{"w2 does not answer"});
    fixture.Passes(std::chrono::seconds(1));
    fixture.SetsUp(1);
  }
  CHECK(fixture.Drop<WorkerLog>() == 3);  // both reasons, and that the plan is set up
  fixture.Passes(std::chrono::minutes(1));
  fixture.Trains();
  fixture.HandleEvent(CommandFailed{"w2/0: connection reset"});
  CHECK(fixture.Drop<WorkerLog>() == 1);
}

TEST_CASE("An adoption that was interrupted leaves nothing to carry") {
  Group fixture;
  fixture.Starts();
  fixture.TrainsSteps(4);
  const PushRequest request = fixture.AwaitPushRequest();
  fixture.Trains();
  fixture.Decides(request.contribution, 1);
  fixture.Pulls(1);
  fixture.Trains();
  CHECK(fixture.Wants<AdoptPulled>().mode == AdoptMode::kCarry);
  fixture.PlansAgain(Alone(2, "w1"));
  fixture.HandleEvent(CommandFailed{"interrupted"});
  fixture.SetsUp(2);
  fixture.Pulls(1);
  fixture.Adopts(1, AdoptMode::kReplace);
  CHECK(fixture.Trains().ranges == Ranges{{8, 10}});
}

TEST_CASE("A new generation interrupts, and sets the same layout up anew") {
  Group fixture;
  fixture.Starts();
  fixture.Wants<TrainStep>();
  fixture.order.generation = 2;
  fixture.order.plan.number = 2;
  fixture.Orders();
  fixture.Wants<InterruptStep>();
  fixture.HandleEvent(CommandFailed{"interrupted"});
  fixture.SetsUp(2);
  fixture.Pulls(0);
  fixture.Adopts(0, AdoptMode::kReplace);
  fixture.Leases(20);
  CHECK(fixture.Trains().ranges == Ranges{{20, 22}});
}

TEST_CASE("An older plan has no effect, and one that cannot be run is named") {
  Group fixture;
  fixture.Starts();
  fixture.order.plan.number = 0;
  fixture.Orders();
  CHECK(fixture.Idle<InterruptStep>());
  fixture.Trains();
  fixture.order.plan = KeepWorkerPrograms(MakeTwoStagePlan(2, "w1", "w2"), "w2");
  fixture.Orders();
  fixture.Trains();
  CHECK(fixture.Idle<Reconfigure>());
  CHECK(fixture.GetActivity().find("plan 2 of 2 workers cannot be run: ") == 0);
}

TEST_CASE("Why a new plan is wanted goes up at once") {
  Group fixture;
  fixture.Starts();
  fixture.Drop<WorkerHeartbeat>();
  fixture.HandleEvent(StageLinksSeen{
      1, {{"w1/0", "w2/0", 2, 0.1, 1e6, true, "slow"}}, "link w1/0 > w2/0 saturated"});
  const IslandProgress progress = *fixture.Wants<WorkerHeartbeat>().progress;
  CHECK(progress.plan_wanted == "link w1/0 > w2/0 saturated");
  REQUIRE(progress.stage_links.size() == 1);
  CHECK(progress.stage_links[0].chunks == 2);
  fixture.PlansAgain(MakeTwoStagePlan(2, "w1", "w2"));
  fixture.Trains();
  fixture.SetsUp(2);
  CHECK(fixture.Wants<WorkerHeartbeat>().progress->plan_wanted.empty());
}

TEST_CASE("Changes by adapters are logged, a line a minute for each stage link") {
  Group fixture;
  fixture.Starts();
  fixture.Drop<WorkerLog>();
  const auto sees = [&](const std::string& out, const std::string& back) {
    fixture.HandleEvent(StageLinksSeen{
        1,
        {{"w1/0", "w2/0", 2, 0.1, 1e6, false, out}, {"w2/0", "w1/0", 2, 0.1, 1e6, false, back}},
        ""});
  };
  sees("", "");
  CHECK(fixture.Idle<WorkerLog>());
  sees("2 chunks", "");
  CHECK(fixture.Wants<WorkerLog>().text == "w1/0 > w2/0: 2 chunks");
  sees("2 chunks", "");
  CHECK(fixture.Idle<WorkerLog>());
  sees("4 chunks", "saturated");
  CHECK(fixture.Wants<WorkerLog>().text == "w2/0 > w1/0: saturated");
  CHECK(fixture.Idle<WorkerLog>());  // the other one has logged its line
  sees("8 chunks", "saturated");
  fixture.Passes(StageLinkLog::kRepeatAfter);
  sees("8 chunks", "saturated");
  CHECK(fixture.Wants<WorkerLog>().text == "w1/0 > w2/0: changed 2 times in 60 s; now 8 chunks");
  CHECK(fixture.Idle<WorkerLog>());
}

// ------------------------------------------------------------------------------ following ----

TEST_CASE("A follower opens the job, serves its leader and says so") {
  FollowerFixture fixture;
  fixture.Starts();
  const MemberProgress progress = fixture.AwaitMemberProgress();
  CHECK(progress.plan_number == 1);
  CHECK(progress.seen_sequence == 1);
  CHECK(progress.activity == "following w2 under plan 1");
  CHECK(fixture.Idle<LeaseRequest>());
  CHECK(fixture.Idle<StartPull>());
  CHECK(fixture.Idle<Reconfigure>());
  fixture.Says(fixture.member);  // a repetition
  CHECK(fixture.Idle<Follow>());
  MemberOrder old = fixture.member;
  old.plan.number = 0;
  old.sequence = 0;
  fixture.Says(old);
  CHECK(fixture.Idle<Follow>());
}

TEST_CASE("A follower takes every larger plan and generation at once, and stops when ordered") {
  FollowerFixture fixture;
  fixture.Starts();
  fixture.member.plan.number = 2;
  fixture.Ordered();
  CHECK(fixture.Wants<Follow>().order.plan.number == 2);
  fixture.member.generation = 2;
  fixture.Ordered();
  CHECK(fixture.Wants<Follow>().order.generation == 2);
  fixture.member.run = RunState::kStop;
  fixture.Ordered();
  fixture.Wants<Unfollow>();
  fixture.Wants<ReleaseJob>();
  CHECK(fixture.GetActivity() == "idle");
}

TEST_CASE(
    "A follower that is to lead forgets its leader, and a leader that is to follow its island") {
  FollowerFixture fixture;
  fixture.Starts();
  fixture.order.generation = 2;
  fixture.order.plan = MakeTwoStagePlan(2, "w1", "w3");
  fixture.Orders();
  fixture.Wants<Unfollow>();
  CHECK(fixture.Wants<Reconfigure>().plan.number == 2);
  fixture.member.generation = 3;
  fixture.member.plan.number = 3;
  fixture.Ordered();
  fixture.Wants<InterruptStep>();
  CHECK(fixture.Idle<Follow>());  // its devices still do what it led
  fixture.HandleEvent(CommandFailed{"interrupted"});
  CHECK(fixture.Wants<Follow>().order.generation == 3);
  CHECK(fixture.Idle<Reconfigure>());
}

TEST_CASE("A follower joins another island, whose generation is older than its own was") {
  FollowerFixture fixture;
  fixture.order.generation = 9;
  fixture.order.plan = Alone(1, "w1");
  fixture.Attaches();
  fixture.Orders();
  fixture.Prepares();
  fixture.HandleEvent(Reconfigured{fixture.Wants<Reconfigure>().plan.number, true, false, ""});
  fixture.member.island = 4;
  fixture.member.generation = 2;
  fixture.Ordered();
  CHECK(fixture.Wants<Follow>().order.generation == 2);
}

TEST_CASE("A follower that ends says so, and goes on serving until its state has moved") {
  FollowerFixture fixture;
  fixture.Starts();
  fixture.HandleEvent(ShutdownRequested{"SIGTERM"});
  CHECK(fixture.Wants<Leaving>().reason == "SIGTERM");
  CHECK(fixture.Idle<Stop>());
  CHECK(fixture.Idle<Unfollow>());
  SECTION("as it should") {
    fixture.member.run = RunState::kStop;
    fixture.Ordered();
    fixture.Wants<Unfollow>();
  }
  SECTION("or for a while, if no order to stop comes") { fixture.Passes(kLeaveLimit); }
  SECTION("or for longer, while others fetch its layers") {
    constexpr Duration kFetchTime = kLeaveLimit - std::chrono::seconds(1);
    for (Duration elapsed{0}; elapsed + kFetchTime < kLeaveLimitMax; elapsed += kFetchTime) {
      fixture.Passes(kFetchTime);
      fixture.HandleEvent(TransferDue{});
      CHECK(fixture.Idle<Stop>());
    }
    fixture.Passes(kFetchTime);
    fixture.HandleEvent(TransferDue{});
    fixture.Passes(kLeaveLimit);
  }
  CHECK(fixture.Wants<Stop>().exit_code == 0);
  CHECK(fixture.Idle<Leaving>());
}

TEST_CASE(
    "A follower that ends stays while its part is planned and set up elsewhere, however slowly") {
  constexpr Duration kNearly = kLeaveLimit - std::chrono::seconds(1);
  FollowerFixture fixture;
  fixture.Starts();
  fixture.HandleEvent(ShutdownRequested{"SIGTERM"});
  fixture.Passes(kNearly);  // planning
  fixture.member.plan.number = 2;
  fixture.Ordered();
  fixture.Passes(kNearly);  // the leader ends its step
  fixture.HandleEvent(FollowerState{0, "waiting for w2 to set up plan 2"});
  fixture.Passes(kNearly);
  fixture.HandleEvent(FollowerState{0, "setting up plan 2"});
  fixture.Passes(kNearly);
  fixture.HandleEvent(FollowerState{2, "following w2 in plan 2"});
  fixture.Passes(kNearly);
  fixture.HandleEvent(TransferDue{});
  fixture.Passes(kNearly);
  CHECK(fixture.Idle<Stop>());
  SECTION("until it is ordered to stop") {
    fixture.member.run = RunState::kStop;
    fixture.Ordered();
  }
  SECTION("or nothing happens any more, though orders are said again") {
    fixture.Ordered();
    fixture.Passes(std::chrono::seconds(1));
  }
  CHECK(fixture.Wants<Stop>().exit_code == 0);
}

TEST_CASE("A worker that ends waits for the step under way, however long") {
  FollowerFixture fixture;
  fixture.member.plan.step_ns = Duration(std::chrono::seconds(70)).count();
  fixture.Starts();
  fixture.HandleEvent(ShutdownRequested{"SIGTERM"});
  fixture.Wants<Leaving>();
  for (int i = 0; i < 14; ++i) fixture.Passes(std::chrono::seconds(10));
  CHECK(fixture.Idle<Stop>());
  fixture.Passes(kLeaveLimit);
  CHECK(fixture.Wants<Stop>().exit_code == 0);
}

}  // namespace
}  // namespace atl::worker
