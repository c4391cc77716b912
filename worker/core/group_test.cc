// Islands of several workers: w1 leads, w2 follows, or w1 follows w2.

#include <catch2/catch.hpp>

#include "worker/core/boundary_news.h"
#include "worker/core/group_story.h"

namespace atl::worker {
namespace {

TEST_CASE("A leader sets its island up before anything else, and trains as usual") {
  Group story;
  story.Starts();
  story.TrainsSteps(4);
  const PushRequest request = story.AsksToPush();
  CHECK(request.consumed == Ranges{{0, 8}});
  CHECK(story.Idle<Reconfigure>());
  story.Drop<WorkerHeartbeat>();
  story.Passes(kHeartbeatInterval);
  CHECK(story.Wants<WorkerHeartbeat>().progress->plan_number == 1);
}

TEST_CASE("A new plan interrupts the step; when the state is kept, the step is replayed") {
  Group story;
  story.Starts();
  story.TrainsSteps(2);
  const TrainStep step = story.Wants<TrainStep>();
  CHECK(step.ranges == Ranges{{4, 6}});
  story.PlansAgain(Alone(2, "w1"));
  CHECK(story.Idle<Reconfigure>());  // the step has not ended yet
  SECTION("it was too late: the step counts") {
    story.Happens(StepDone{20, 2.0, 0.1, false});
    story.SetsUp(2);
    CHECK(story.Trains().ranges == Ranges{{6, 8}});
  }
  SECTION("it changed nothing") {
    story.Happens(CommandFailed{"interrupted"});
    CHECK(story.Idle<WorkerLog>());  // as intended: no failure
    story.SetsUp(2);
    CHECK(story.Trains().ranges == Ranges{{4, 6}});
    CHECK(story.Trains().ranges == Ranges{{6, 8}});
  }
  SECTION("every device had taken it") {
    story.Happens(CommandFailed{"interrupted"});
    story.SetsUp(2, true, true);
    CHECK(story.Trains().ranges == Ranges{{6, 8}});
  }
  const PushRequest request = story.AsksToPush();
  CHECK(request.consumed == Ranges{{0, 8}});  // each sequence once
  CHECK(request.inner_steps == 4);
  CHECK(request.tokens == 80);
}

TEST_CASE("Links are measured for the coordinator, but not by a worker that is in an island") {
  Group story;
  const MeasureLinks request{
      "job-1", 3, {{"w1", 5, "tcp://w1", ""}, {"w2", 7, "tcp://w2", ""}}, "w1"};
  story.Attaches();
  story.Says(request);
  CHECK(story.Wants<MeasureLinks>().request == 3);
  story.Happens(LinksMeasured{"job-1", 3, {{"w1", "w2", 1000, 1e8, 0.01, 20}}, ""});
  CHECK(story.Wants<LinksMeasured>().links[0].to == "w2");
  story.Orders();
  story.Says(request);
  CHECK(story.Idle<MeasureLinks>());
  MeasureLinks beside = request;
  beside.beside = true;
  story.Says(beside);
  CHECK(story.Wants<MeasureLinks>().beside);
  MeasureLinks probe = request;
  probe.probe = true;
  story.Says(probe);
  CHECK(story.Wants<MeasureLinks>().probe);
}

TEST_CASE("A step is traced by the leader of that island and generation alone") {
  Group story;
  story.Attaches();
  story.Says(TraceNextStep{"job-1", 0, 1, 8});
  CHECK(story.Idle<TraceNextStep>());
  CHECK(story.Wants<StepTraced>().trouble.find("does not lead island 0") != std::string::npos);
  story.Orders();
  story.Says(TraceNextStep{"job-1", story.order.island, 999, 9});
  CHECK(story.Wants<StepTraced>().request == 9);
  story.Says(TraceNextStep{"job-1", story.order.island, story.order.generation, 10});
  CHECK(story.Wants<TraceNextStep>().request == 10);
  StepTraced traced{"job-1", 10, "", {}};
  traced.trace.step = 4;
  story.Happens(traced);
  CHECK(story.Wants<StepTraced>().trace.step == 4);
}

TEST_CASE("What a worker measured of its devices goes with its answer") {
  Group story;
  story.Attaches();
  story.Says(PrepareJob{story.order.job, story.order.spec});
  story.Wants<Prepare>();
  DeviceProfile profile;
  profile.device = "w1/0";
  story.Happens(Prepared{story.order.job, {story.order.layers, 1000, 100, 7}, {profile}});
  CHECK(story.Wants<JobPrepared>().profiles == std::vector<DeviceProfile>{profile});
}

TEST_CASE("A new plan between steps: set up, then on") {
  Group story;
  story.Starts();
  story.order.run = RunState::kPause;
  story.Orders();
  story.Trains();
  story.order.plan = Alone(2, "w1");
  story.order.run = RunState::kRun;
  story.Orders();
  CHECK(story.Idle<InterruptStep>());
  story.SetsUp(2);
  CHECK(story.Trains().ranges == Ranges{{2, 4}});
}

TEST_CASE("State that is lost: back to the committed version, on the same sequences") {
  Group story;
  story.Starts();
  story.TrainsSteps(2);
  story.Wants<TrainStep>();
  story.PlansAgain(Alone(2, "w1"));
  story.Happens(CommandFailed{"interrupted"});
  story.SetsUp(2, false);
  CHECK(story.Wants<WorkerLog>().text ==
        "the state of 2 steps since version 0 is lost (no member holds layer 1): back to the "
        "committed version");
  story.Pulls(0);
  const AdoptPulled adopt = story.Wants<AdoptPulled>();
  CHECK(adopt.mode == AdoptMode::kReplace);
  CHECK_FALSE(adopt.reset_moments);  // a local checkpoint's will do
  story.Happens(Adopted{0});
  CHECK(story.Trains().ranges == Ranges{{0, 2}});
  story.TrainsSteps(3);
  CHECK(story.AsksToPush().consumed == Ranges{{0, 8}});
}

TEST_CASE("A contribution in flight outlives the loss of the devices' state") {
  Group story;
  story.Starts();
  story.TrainsSteps(4);
  const PushRequest request = story.AsksToPush();
  story.IsGranted(request.contribution);
  story.Trains();
  story.Wants<TrainStep>();
  story.PlansAgain(Alone(2, "w1"));
  story.Happens(CommandFailed{"interrupted"});
  story.SetsUp(2, false);
  CHECK(story.Idle<TrainStep>());  // there is nothing to train on until the next version
  story.Pushes();
  story.Decides(request.contribution, 1);
  story.Pulls(1);
  story.Adopts(1, AdoptMode::kReplace);
  CHECK(story.Trains().ranges == Ranges{{8, 10}});
}

TEST_CASE("Whatever fails under a plan, the island is set up again before the next command") {
  Group story;
  story.Starts();
  story.Wants<TrainStep>();
  story.Happens(CommandFailed{"w2/0: connection reset"});
  CHECK(story.Wants<WorkerLog>().text != "");
  CHECK(story.Idle<Reconfigure>());  // not at once
  CHECK(story.Doing() == "failed, tries again: w2/0: connection reset");
  story.Passes(std::chrono::seconds(1));
  story.Wants<Reconfigure>();
  story.Happens(CommandFailed{"w2 does not answer"});
  SECTION("and again") {
    story.Passes(std::chrono::seconds(1));
    story.SetsUp(1);
  }
  SECTION("at once when there is a new plan") {
    story.order.plan = Alone(2, "w1");
    story.Orders();
    story.SetsUp(2);
  }
  CHECK(story.Trains().ranges == Ranges{{0, 2}});
}

TEST_CASE(
    "What fails over and over is in the job's log once, and again when steps have succeeded") {
  Group story;
  story.Starts();
  story.Drop<WorkerLog>();
  for (int tries = 0; tries < 5; ++tries) {
    story.Wants<TrainStep>();
    story.Happens(CommandFailed{"w2/0: connection reset"});
    story.Passes(std::chrono::seconds(1));
    story.Wants<Reconfigure>();
    story.Happens(CommandFailed{"w2 does not answer"});
    story.Passes(std::chrono::seconds(1));
    story.SetsUp(1);
  }
  CHECK(story.Drop<WorkerLog>() == 3);  // both reasons, and that the plan is set up
  story.Passes(std::chrono::minutes(1));
  story.Trains();
  story.Happens(CommandFailed{"w2/0: connection reset"});
  CHECK(story.Drop<WorkerLog>() == 1);
}

TEST_CASE("An adoption that was interrupted leaves nothing to carry") {
  Group story;
  story.Starts();
  story.TrainsSteps(4);
  const PushRequest request = story.AsksToPush();
  story.Trains();
  story.Decides(request.contribution, 1);
  story.Pulls(1);
  story.Trains();
  CHECK(story.Wants<AdoptPulled>().mode == AdoptMode::kCarry);
  story.PlansAgain(Alone(2, "w1"));
  story.Happens(CommandFailed{"interrupted"});
  story.SetsUp(2);
  story.Pulls(1);
  story.Adopts(1, AdoptMode::kReplace);
  CHECK(story.Trains().ranges == Ranges{{8, 10}});
}

TEST_CASE("A new generation interrupts, and sets the same layout up anew") {
  Group story;
  story.Starts();
  story.Wants<TrainStep>();
  story.order.generation = 2;
  story.order.plan.number = 2;
  story.Orders();
  story.Wants<InterruptStep>();
  story.Happens(CommandFailed{"interrupted"});
  story.SetsUp(2);
  story.Pulls(0);
  story.Adopts(0, AdoptMode::kReplace);
  story.Leases(20);
  CHECK(story.Trains().ranges == Ranges{{20, 22}});
}

TEST_CASE("An older plan has no effect, and one that cannot be run is named") {
  Group story;
  story.Starts();
  story.order.plan.number = 0;
  story.Orders();
  CHECK(story.Idle<InterruptStep>());
  story.Trains();
  story.order.plan = WithProgramsOf(PlanOf(2, "w1", "w2"), "w2");
  story.Orders();
  story.Trains();
  CHECK(story.Idle<Reconfigure>());
  CHECK(story.Doing().find("plan 2 of 2 workers cannot be run: ") == 0);
}

TEST_CASE("Why a new plan is wanted goes up at once") {
  Group story;
  story.Starts();
  story.Drop<WorkerHeartbeat>();
  story.Happens(BoundariesSeen{
      1, {{"w1/0", "w2/0", 2, 0.1, 1e6, true, "slow"}}, "link w1/0 > w2/0 saturated"});
  const IslandProgress progress = *story.Wants<WorkerHeartbeat>().progress;
  CHECK(progress.plan_wanted == "link w1/0 > w2/0 saturated");
  REQUIRE(progress.boundaries.size() == 1);
  CHECK(progress.boundaries[0].pieces == 2);
  story.PlansAgain(PlanOf(2, "w1", "w2"));
  story.Trains();
  story.SetsUp(2);
  CHECK(story.Wants<WorkerHeartbeat>().progress->plan_wanted.empty());
}

TEST_CASE("Changes by adapters are logged, a line a minute for each stage link") {
  Group story;
  story.Starts();
  story.Drop<WorkerLog>();
  const auto sees = [&](const std::string& out, const std::string& back) {
    story.Happens(BoundariesSeen{
        1,
        {{"w1/0", "w2/0", 2, 0.1, 1e6, false, out}, {"w2/0", "w1/0", 2, 0.1, 1e6, false, back}},
        ""});
  };
  sees("", "");
  CHECK(story.Idle<WorkerLog>());
  sees("2 chunks", "");
  CHECK(story.Wants<WorkerLog>().text == "w1/0 > w2/0: 2 chunks");
  sees("2 chunks", "");
  CHECK(story.Idle<WorkerLog>());
  sees("4 chunks", "saturated");
  CHECK(story.Wants<WorkerLog>().text == "w2/0 > w1/0: saturated");
  CHECK(story.Idle<WorkerLog>());  // the other one has had its line
  sees("8 chunks", "saturated");
  story.Passes(BoundaryNews::kQuiet);
  sees("8 chunks", "saturated");
  CHECK(story.Wants<WorkerLog>().text == "w1/0 > w2/0: changed 2 times in 60 s; now 8 chunks");
  CHECK(story.Idle<WorkerLog>());
}

// ------------------------------------------------------------------------------ following ----

TEST_CASE("A follower opens the job, serves its leader and says so") {
  Following story;
  story.Starts();
  const MemberProgress progress = story.Tells();
  CHECK(progress.plan_number == 1);
  CHECK(progress.seen_sequence == 1);
  CHECK(progress.doing == "following w2 under plan 1");
  CHECK(story.Idle<LeaseRequest>());
  CHECK(story.Idle<StartPull>());
  CHECK(story.Idle<Reconfigure>());
  story.Says(story.member);  // a repetition
  CHECK(story.Idle<Follow>());
  MemberOrder old = story.member;
  old.plan.number = 0;
  old.sequence = 0;
  story.Says(old);
  CHECK(story.Idle<Follow>());
}

TEST_CASE("A follower takes every larger plan and generation at once, and stops when ordered") {
  Following story;
  story.Starts();
  story.member.plan.number = 2;
  story.Ordered();
  CHECK(story.Wants<Follow>().order.plan.number == 2);
  story.member.generation = 2;
  story.Ordered();
  CHECK(story.Wants<Follow>().order.generation == 2);
  story.member.run = RunState::kStop;
  story.Ordered();
  story.Wants<Unfollow>();
  story.Wants<ReleaseJob>();
  CHECK(story.Doing() == "idle");
}

TEST_CASE(
    "A follower that is to lead forgets its leader, and a leader that is to follow its island") {
  Following story;
  story.Starts();
  story.order.generation = 2;
  story.order.plan = PlanOf(2, "w1", "w3");
  story.Orders();
  story.Wants<Unfollow>();
  CHECK(story.Wants<Reconfigure>().plan.number == 2);
  story.member.generation = 3;
  story.member.plan.number = 3;
  story.Ordered();
  story.Wants<InterruptStep>();
  CHECK(story.Idle<Follow>());  // its devices still do what it led
  story.Happens(CommandFailed{"interrupted"});
  CHECK(story.Wants<Follow>().order.generation == 3);
  CHECK(story.Idle<Reconfigure>());
}

TEST_CASE("A follower joins another island, whose generation is older than its own was") {
  Following story;
  story.order.generation = 9;
  story.order.plan = Alone(1, "w1");
  story.Attaches();
  story.Orders();
  story.Prepares();
  story.Happens(Reconfigured{story.Wants<Reconfigure>().plan.number, true, false, ""});
  story.member.island = 4;
  story.member.generation = 2;
  story.Ordered();
  CHECK(story.Wants<Follow>().order.generation == 2);
}

TEST_CASE("A follower that ends says so, and goes on serving until its state has moved") {
  Following story;
  story.Starts();
  story.Happens(ShutdownRequested{"SIGTERM"});
  CHECK(story.Wants<Leaving>().reason == "SIGTERM");
  CHECK(story.Idle<Stop>());
  CHECK(story.Idle<Unfollow>());
  SECTION("as it should") {
    story.member.run = RunState::kStop;
    story.Ordered();
    story.Wants<Unfollow>();
  }
  SECTION("or for a while, if no order to stop comes") { story.Passes(kLeaveLimit); }
  SECTION("or for longer, while others fetch its layers") {
    constexpr Duration kPiece = kLeaveLimit - std::chrono::seconds(1);
    for (Duration lends{0}; lends + kPiece < kLeaveLimitMax; lends += kPiece) {
      story.Passes(kPiece);
      story.Happens(Lent{});
      CHECK(story.Idle<Stop>());
    }
    story.Passes(kPiece);
    story.Happens(Lent{});
    story.Passes(kLeaveLimit);
  }
  CHECK(story.Wants<Stop>().exit_code == 0);
  CHECK(story.Idle<Leaving>());
}

TEST_CASE(
    "A follower that ends stays while its part is planned and set up elsewhere, however slowly") {
  constexpr Duration kNearly = kLeaveLimit - std::chrono::seconds(1);
  Following story;
  story.Starts();
  story.Happens(ShutdownRequested{"SIGTERM"});
  story.Passes(kNearly);  // planning
  story.member.plan.number = 2;
  story.Ordered();
  story.Passes(kNearly);  // the leader ends its step
  story.Happens(FollowerState{0, "waiting for w2 to set up plan 2"});
  story.Passes(kNearly);
  story.Happens(FollowerState{0, "setting up plan 2"});
  story.Passes(kNearly);
  story.Happens(FollowerState{2, "following w2 in plan 2"});
  story.Passes(kNearly);
  story.Happens(Lent{});
  story.Passes(kNearly);
  CHECK(story.Idle<Stop>());
  SECTION("until it is ordered to stop") {
    story.member.run = RunState::kStop;
    story.Ordered();
  }
  SECTION("or nothing happens any more, though orders are said again") {
    story.Ordered();
    story.Passes(std::chrono::seconds(1));
  }
  CHECK(story.Wants<Stop>().exit_code == 0);
}

TEST_CASE("A worker that ends waits for the step under way, however long") {
  Following story;
  story.member.plan.step_ns = Duration(std::chrono::seconds(70)).count();
  story.Starts();
  story.Happens(ShutdownRequested{"SIGTERM"});
  story.Wants<Leaving>();
  for (int i = 0; i < 14; ++i) story.Passes(std::chrono::seconds(10));
  CHECK(story.Idle<Stop>());
  story.Passes(kLeaveLimit);
  CHECK(story.Wants<Stop>().exit_code == 0);
}

}  // namespace
}  // namespace atl::worker
