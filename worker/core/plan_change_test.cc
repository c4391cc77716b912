// Islands of several workers whose members come and go: plans that wait for a step's end, leaders
// that hand over and take over.

#include <catch2/catch.hpp>

#include "worker/core/testing/group_fixture.h"

namespace atl::worker {
namespace {

TEST_CASE("A plan that may wait is set up when the step under way has ended") {
  Group fixture;
  fixture.Starts();
  fixture.TrainsSteps(2);
  CHECK(fixture.Wants<TrainStep>().ranges == Ranges{{4, 6}});
  fixture.order.at_step_end = true;
  fixture.order.plan = MakeTwoStagePlan(2, "w1", "w2");
  fixture.Orders();
  CHECK(fixture.Idle<InterruptStep>());
  CHECK(fixture.Idle<Reconfigure>());
  fixture.Drop<WorkerHeartbeat>();
  fixture.Passes(kHeartbeatInterval);
  CHECK(fixture.Wants<WorkerHeartbeat>().progress->setting_up == 0);
  SECTION("and says so at once, since the others wait for it") {
    fixture.HandleEvent(StepDone{20, 2.0, 0.1, false});
    // Another member may still be at the step's end: it must not get the plan yet.
    fixture.Drop<WorkerHeartbeat>();
    fixture.Passes(kHeartbeatInterval);
    CHECK(fixture.Wants<WorkerHeartbeat>().progress->setting_up == 0);
    fixture.HandleEvent(Drained{1, 2});
    CHECK(fixture.Wants<WorkerHeartbeat>().progress->setting_up == 2);
    fixture.SetsUp(2);
    CHECK(fixture.Trains().ranges == Ranges{{6, 8}});
    fixture.Drop<WorkerHeartbeat>();
    fixture.Passes(kHeartbeatInterval);
    const IslandProgress progress = *fixture.Wants<WorkerHeartbeat>().progress;
    CHECK(progress.setting_up == 0);
    CHECK(progress.plan_number == 2);
    CHECK(progress.steps_interrupted == 0);
    CHECK(progress.steps_redone == 0);
  }
  SECTION("unless the coordinator detects that a member of the old plan has failed") {
    fixture.order.at_step_end = false;
    fixture.Orders();
    fixture.Wants<InterruptStep>();
    fixture.HandleEvent(CommandFailed{"interrupted"});
    fixture.SetsUp(2);
    CHECK(fixture.Trains().ranges == Ranges{{4, 6}});
    fixture.Drop<WorkerHeartbeat>();
    fixture.Passes(kHeartbeatInterval);
    CHECK(fixture.Wants<WorkerHeartbeat>().progress->steps_interrupted == 1);
  }
  SECTION("also while it waits for another member at the step's end that has failed") {
    fixture.HandleEvent(StepDone{20, 2.0, 0.1, false});
    fixture.order.at_step_end = false;
    fixture.Orders();
    fixture.Wants<InterruptStep>();
    fixture.HandleEvent(Drained{1, 2});
    fixture.HandleEvent(CommandFailed{"interrupted"});
    fixture.Wants<Reconfigure>();
    fixture.SetsUp(2);
    CHECK(fixture.Trains().ranges == Ranges{{6, 8}});
  }
  SECTION("and once no member works under the old plan, no failure interrupts it") {
    fixture.HandleEvent(StepDone{20, 2.0, 0.1, false});
    fixture.HandleEvent(Drained{1, 2});
    fixture.order.at_step_end = false;
    fixture.Orders();
    CHECK(fixture.Idle<InterruptStep>());
    fixture.SetsUp(2);
  }
}

TEST_CASE("A plan that may wait waits for a pseudo-gradient that is being made") {
  Group fixture;
  fixture.Starts();
  fixture.TrainsSteps(4);
  const ContributionId first = fixture.Wants<CaptureDelta>().contribution;
  fixture.HandleEvent(DeltaCaptured{first});
  fixture.order.at_step_end = true;
  fixture.order.plan = MakeTwoStagePlan(2, "w1", "w2");
  fixture.Orders();
  CHECK(fixture.Idle<InterruptStep>());
  fixture.Trains();
  CHECK(fixture.Idle<Reconfigure>());
  fixture.Drop<WorkerHeartbeat>();
  fixture.Passes(kHeartbeatInterval);
  CHECK(fixture.Wants<WorkerHeartbeat>().progress->setting_up == 0);
  fixture.HandleEvent(DeltaReady{first});
  fixture.SetsUp(2);
  CHECK(fixture.Wants<PushRequest>().contribution == first);
}

TEST_CASE("Every attempt to set up a plan names the base and the push that are to be there") {
  Group fixture;
  fixture.Starts();
  fixture.TrainsSteps(4);
  const ContributionId push = fixture.AwaitPushRequest().contribution;
  fixture.order.plan = MakeTwoStagePlan(2, "w1", "w2");
  fixture.Orders();
  fixture.HandleEvent(CommandFailed{"interrupted"});
  for (const int attempt : {1, 2}) {
    INFO("attempt " << attempt);
    fixture.Passes(kRetryInterval);
    const Reconfigure setup = fixture.Wants<Reconfigure>();
    CHECK(setup.outer.base == fixture.order.committed_version);
    CHECK(setup.outer.captured == push);
    if (attempt == 1) fixture.HandleEvent(CommandFailed{"w2 is unavailable"});
  }
  fixture.Drop<PushRequest>();
  Reconfigured without{2, /*kept=*/false};
  without.push_lost = true;
  fixture.HandleEvent(without);
  fixture.Passes(kRetryInterval);
  CHECK(fixture.Wants<PushRequest>().inner_steps == 0);  // it is withdrawn
}

TEST_CASE("What is captured when the island begins anew ends soon") {
  Group fixture;
  fixture.Starts();
  fixture.TrainsSteps(4);
  fixture.HandleEvent(DeltaCaptured{fixture.Wants<CaptureDelta>().contribution});
  fixture.HandleEvent(CommandFailed{"w2 is unavailable"});  // the step after it
  fixture.Drop<Reconfigure>();
  fixture.HandleEvent(CommandFailed{"still unavailable"});
  ++fixture.order.generation;
  fixture.Orders();
  fixture.Wants<InterruptStep>();
}

TEST_CASE("A plan that comes while one before it is being set up takes its place at once") {
  Group fixture;
  fixture.Starts();
  fixture.Trains();
  CHECK(fixture.Wants<TrainStep>().ranges == Ranges{{2, 4}});
  fixture.order.at_step_end = true;
  fixture.order.plan = MakeTwoStagePlan(2, "w1", "w2");
  fixture.Orders();
  fixture.HandleEvent(StepDone{20, 2.0, 0.1, false});
  CHECK(fixture.Wants<Reconfigure>().plan.number == 2);
  SECTION("if no step goes on any more: the others may not have that plan") {
    fixture.HandleEvent(Drained{1, 2});
    fixture.order.plan = MakeTwoStagePlan(3, "w1", "w2");
    fixture.Orders();
    fixture.Wants<InterruptStep>();
    fixture.HandleEvent(CommandFailed{"interrupted"});
  }
  SECTION("else when the newest step has ended everywhere") {
    fixture.order.plan = MakeTwoStagePlan(3, "w1", "w2");
    fixture.Orders();
    CHECK(fixture.Idle<InterruptStep>());
    fixture.HandleEvent(Drained{1, 2});
    fixture.Wants<InterruptStep>();
    fixture.HandleEvent(CommandFailed{"interrupted"});
  }
  fixture.SetsUp(3);
  CHECK(fixture.Trains().ranges == Ranges{{4, 6}});
}

// ---- a leader hands over ----

class SuccessorFixture : public FollowerFixture {
 public:
  // w1 follows w2, and is then to take over from it.
  void IsToTakeOver() {
    order.spec.checkpoint.peer_copies = 0;  // that is saving_test's
    Starts();
    order.plan = MakeTwoStagePlan(2, "w1", "w2");
    order.at_step_end = true;
    order.author = 7;
    order.takes_over_from = "w2";
    Orders();
    Wants<Unfollow>();
  }
  Leadership known{.island = 3,
                   .generation = 1,
                   .adopted = true,
                   .base_version = 0,
                   .local = {2, 40, 80, {{0, 4}}},
                   .leased = {{4, 12}},
                   .lease_request = 5};
};

MemberOrder OrderToFollow(const Fixture& fixture, const NodeId& successor) {
  MemberOrder order;
  order.job = fixture.order.job;
  order.spec = fixture.order.spec;
  order.island = fixture.order.island;
  order.generation = fixture.order.generation;
  order.sequence = fixture.order.sequence + 1;
  order.plan = MakeTwoStagePlan(2, successor, "w1");
  order.at_step_end = true;
  return order;
}

TEST_CASE("A leader that ends works on until it is to follow, and hands over what it knows") {
  Group fixture;
  fixture.Starts();
  fixture.TrainsSteps(4);
  const PushRequest request = fixture.AwaitPushRequest();
  fixture.IsGranted(request.contribution);
  CHECK(fixture.Trains().ranges == Ranges{{8, 10}});
  fixture.HandleEvent(ShutdownRequested{"SIGTERM"});
  CHECK(fixture.Wants<Leaving>().reason == "SIGTERM");
  CHECK(fixture.Wants<TrainStep>().ranges == Ranges{{10, 12}});
  CHECK(fixture.GetActivity().find("leaves (SIGTERM): training") == 0);
  fixture.Says(OrderToFollow(fixture, "w2"));
  CHECK(fixture.Idle<InterruptStep>());
  CHECK(fixture.Idle<Handover>());  // the step is finished first
  fixture.HandleEvent(StepDone{20, 2.0, 0.1, false});
  const Leadership known = fixture.Wants<Handover>().leadership;
  CHECK(known.generation == 1);
  CHECK(known.adopted);
  CHECK(known.base_version == 0);
  CHECK(known.in_flight == request.contribution);
  CHECK(known.in_flight_work.consumed == Ranges{{0, 8}});
  CHECK(known.local.consumed == Ranges{{8, 12}});
  CHECK(known.local.steps == 2);
  CHECK(known.leased == Ranges{{12, 20}});
  CHECK_FALSE(known.step_failed);
  CHECK(fixture.Idle<TrainStep>());
  fixture.Wants<CancelTransfers>();
  fixture.Drop<WorkerHeartbeat>();
  fixture.HandleEvent(HandedOver{});
  CHECK(fixture.Wants<Follow>().order.plan.number == 2);
  fixture.Passes(std::chrono::milliseconds(1));
  const WorkerHeartbeat heartbeat = fixture.Wants<WorkerHeartbeat>();
  CHECK_FALSE(heartbeat.progress.has_value());
  CHECK(heartbeat.member->holds_layers);
  CHECK(heartbeat.member->seen_sequence == fixture.order.sequence + 1);
  SECTION("it ends when it is ordered to") {
    MemberOrder stop = OrderToFollow(fixture, "w2");
    stop.sequence += 1;
    stop.run = RunState::kStop;
    fixture.Says(stop);
    fixture.Wants<Unfollow>();
  }
  SECTION("or when its time is over") { fixture.Passes(kLeaveLimit); }
  CHECK(fixture.Wants<Stop>().exit_code == 0);
}

TEST_CASE("A leader that ends without an order to hand over ends at its time limit") {
  Group fixture;
  fixture.Starts();
  fixture.HandleEvent(ShutdownRequested{"SIGTERM"});
  fixture.Wants<Leaving>();
  fixture.TrainsSteps(3);
  fixture.Passes(kLeaveLimit);
  fixture.Trains();  // the one under way
  CHECK(fixture.Wants<Stop>().exit_code == 0);
}

TEST_CASE(
    "A leader that ends stays for a plan without a follower, and then for its successor's plan") {
  constexpr Duration kNearly = kLeaveLimit - std::chrono::seconds(1);
  Group fixture;
  fixture.Starts();
  fixture.Trains();
  fixture.HandleEvent(ShutdownRequested{"SIGTERM"});
  fixture.Passes(kNearly);
  fixture.order.at_step_end = true;
  fixture.order.plan = MakeTwoStagePlan(2, "w1", "w3");
  fixture.Orders();
  fixture.Passes(kNearly);  // the step lasts longer than was foreseen
  fixture.Trains();
  fixture.Passes(kNearly);
  fixture.HandleEvent(Drained{1, 2});
  fixture.Passes(kNearly);
  fixture.SetsUp(2);
  fixture.Trains();
  fixture.Passes(kNearly);  // planning again
  fixture.Says(OrderToFollow(fixture, "w3"));
  fixture.Passes(kNearly);
  fixture.Trains();
  fixture.Passes(kNearly);
  fixture.Wants<Handover>();
  fixture.HandleEvent(HandedOver{});
  fixture.Passes(kNearly);
  CHECK(fixture.Idle<Stop>());
  fixture.Passes(std::chrono::seconds(1));
  CHECK(fixture.Wants<Stop>().exit_code == 0);
}

TEST_CASE("A leader that ends is not kept by what has nothing to do with its leaving") {
  Group fixture;
  fixture.Starts();
  fixture.HandleEvent(ShutdownRequested{"SIGTERM"});
  for (Duration passed{0}; passed < kLeaveLimit; passed += std::chrono::seconds(10)) {
    CHECK(fixture.Idle<Stop>());
    fixture.Orders();  // of the same plan
    fixture.Trains();
    fixture.Passes(std::chrono::seconds(10));
  }
  fixture.Trains();
  CHECK(fixture.Wants<Stop>().exit_code == 0);
}

TEST_CASE("A leader with all of the plan hands over too, where another worker shares the island") {
  Group fixture;
  fixture.order.plan = Alone(1, "w1");
  SECTION("to a spare one") {}
  SECTION("but is not waited for without another worker") { fixture.order.shared = false; }
  fixture.Attaches();
  fixture.Orders();
  fixture.Prepares();
  fixture.SetsUp(1, false);
  fixture.Pulls(0);
  fixture.Adopts(0, AdoptMode::kReplace);
  fixture.Leases(20);
  fixture.HandleEvent(ShutdownRequested{"SIGTERM"});
  if (!fixture.order.shared) {
    fixture.Trains();
    fixture.Wants<Leaving>();
    CHECK(fixture.Wants<Stop>().exit_code == 0);
    return;
  }
  fixture.Wants<Leaving>();
  CHECK(fixture.Idle<Stop>());
  fixture.Says(OrderToFollow(fixture, "w2"));
  fixture.Trains();
  CHECK(fixture.Wants<Handover>().leadership.local.steps == 1);
  fixture.HandleEvent(HandedOver{});
  CHECK(fixture.Wants<Follow>().order.plan.number == 2);
}

TEST_CASE(
    "A step that failed just before the hand-over may have been taken: its successor finds out") {
  Group fixture;
  fixture.Starts();
  fixture.Trains();
  CHECK(fixture.Wants<TrainStep>().ranges == Ranges{{2, 4}});
  MemberOrder order = OrderToFollow(fixture, "w2");
  order.at_step_end = false;  // a member has failed
  fixture.Says(order);
  fixture.Wants<InterruptStep>();
  fixture.HandleEvent(CommandFailed{"interrupted"});
  const Leadership known = fixture.Wants<Handover>().leadership;
  CHECK(known.step_failed);
  CHECK(known.stepping == Ranges{{2, 4}});
  CHECK(known.local.consumed == Ranges{{0, 2}});
}

TEST_CASE("A successor requests nothing before it has the control state, and continues from it") {
  SuccessorFixture fixture;
  fixture.IsToTakeOver();
  CHECK(fixture.Idle<LeaseRequest>());
  CHECK(fixture.Idle<StartPull>());
  const Reconfigure setup = fixture.Wants<Reconfigure>();
  CHECK(setup.take_over_from == "w2");
  SECTION("between two steps") {
    fixture.HandleEvent(Reconfigured{2, true, false, "", fixture.known});
    CHECK(fixture.Trains().ranges == Ranges{{4, 6}});
    CHECK(fixture.Wants<LeaseRequest>().request == 5);
    fixture.Trains();
    const PushRequest push = fixture.AwaitPushRequest();
    CHECK(push.consumed == Ranges{{0, 8}});  // each sequence once, whichever leader trained on it
    CHECK(push.inner_steps == 4);
    CHECK(push.contribution == ContributionId{3, 1, 7, 0});  // named as the first leader's
  }
  SECTION("a step that failed was taken by all") {
    fixture.known.step_failed = true;
    fixture.known.stepping = {{4, 6}};
    fixture.known.leased = {{6, 12}};
    fixture.HandleEvent(Reconfigured{2, true, true, "", fixture.known});
    CHECK(fixture.Trains().ranges == Ranges{{6, 8}});
    CHECK(fixture.AwaitPushRequest().consumed == Ranges{{0, 8}});
  }
  SECTION("a step that failed was not") {
    fixture.known.step_failed = true;
    fixture.known.stepping = {{4, 6}};
    fixture.known.leased = {{6, 12}};
    fixture.HandleEvent(Reconfigured{2, true, false, "", fixture.known});
    CHECK(fixture.Trains().ranges == Ranges{{4, 6}});
  }
  SECTION("the devices' state is lost meanwhile: the same sequences again") {
    fixture.HandleEvent(Reconfigured{2, false, false, "no member holds layer 1", fixture.known});
    fixture.Pulls(0);
    fixture.Adopts(0, AdoptMode::kReplace);
    CHECK(fixture.Trains().ranges == Ranges{{0, 2}});
  }
  SECTION("with a contribution in flight, which it goes on pushing") {
    fixture.known.in_flight = ContributionId{3, 1, 7, 0};
    fixture.known.in_flight_work = {4, 80, 160, {{0, 8}}};
    fixture.known.local = {1, 20, 40, {{8, 10}}};
    fixture.known.leased = {{10, 20}};
    fixture.HandleEvent(Reconfigured{2, true, false, "", fixture.known});
    CHECK(fixture.Wants<PushRequest>().consumed == Ranges{{0, 8}});
    fixture.IsGranted(*fixture.known.in_flight);
    fixture.Pushes();
    fixture.Trains();
    fixture.Decides(*fixture.known.in_flight, 1);
    fixture.Pulls(1);
    fixture.Trains();
    fixture.Adopts(1, AdoptMode::kCarry);
    CHECK(fixture.Trains().ranges == Ranges{{14, 16}});
  }
  SECTION("and once is enough: later plans are set up as usual") {
    fixture.HandleEvent(Reconfigured{2, true, false, "", fixture.known});
    fixture.Trains();
    fixture.order.plan = MakeTwoStagePlan(3, "w1", "w3");
    fixture.order.takes_over_from.clear();
    fixture.Orders();
    fixture.Trains();
    CHECK(fixture.Wants<Reconfigure>().take_over_from.empty());
  }
}

TEST_CASE("A hand-over that fails is tried again, and a new generation ends it") {
  SuccessorFixture fixture;
  fixture.IsToTakeOver();
  fixture.Wants<Reconfigure>();
  fixture.HandleEvent(CommandFailed{"w2: it has not led this island in this generation"});
  fixture.Passes(std::chrono::seconds(1));
  CHECK(fixture.Wants<Reconfigure>().take_over_from == "w2");
  fixture.order.generation = 2;
  fixture.order.plan.number = 3;
  fixture.order.takes_over_from.clear();
  fixture.order.author = 5;
  fixture.Orders();
  fixture.HandleEvent(CommandFailed{"interrupted"});
  CHECK(fixture.Wants<Reconfigure>().take_over_from.empty());
  fixture.HandleEvent(Reconfigured{3, true, false, ""});
  fixture.Pulls(0);
  fixture.Adopts(0, AdoptMode::kReplace);
}

}  // namespace
}  // namespace atl::worker
