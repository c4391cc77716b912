// Islands of several workers whose members come and go: plans that wait for a step's end, leaders
// that hand over and take over.

#include <catch2/catch.hpp>

#include "worker/core/group_story.h"

namespace atl::worker {
namespace {

TEST_CASE("A plan that may wait is set up when the step under way has ended") {
  Group story;
  story.Starts();
  story.TrainsSteps(2);
  CHECK(story.Wants<TrainStep>().ranges == Ranges{{4, 6}});
  story.order.at_boundary = true;
  story.order.plan = PlanOf(2, "w1", "w2");
  story.Orders();
  CHECK(story.Idle<InterruptStep>());
  CHECK(story.Idle<Reconfigure>());
  story.Drop<WorkerHeartbeat>();
  story.Passes(kHeartbeatInterval);
  CHECK(story.Wants<WorkerHeartbeat>().progress->setting_up == 0);
  SECTION("and says so at once, since the others wait for it") {
    story.Happens(StepDone{20, 2.0, 0.1, false});
    // Another member may still be at the step's end: it must not get the plan yet.
    story.Drop<WorkerHeartbeat>();
    story.Passes(kHeartbeatInterval);
    CHECK(story.Wants<WorkerHeartbeat>().progress->setting_up == 0);
    story.Happens(Settled{1, 2});
    CHECK(story.Wants<WorkerHeartbeat>().progress->setting_up == 2);
    story.SetsUp(2);
    CHECK(story.Trains().ranges == Ranges{{6, 8}});
    story.Drop<WorkerHeartbeat>();
    story.Passes(kHeartbeatInterval);
    const IslandProgress progress = *story.Wants<WorkerHeartbeat>().progress;
    CHECK(progress.setting_up == 0);
    CHECK(progress.plan_number == 2);
    CHECK(progress.steps_interrupted == 0);
    CHECK(progress.steps_redone == 0);
  }
  SECTION("unless the coordinator detects that a member of the old plan has failed") {
    story.order.at_boundary = false;
    story.Orders();
    story.Wants<InterruptStep>();
    story.Happens(CommandFailed{"interrupted"});
    story.SetsUp(2);
    CHECK(story.Trains().ranges == Ranges{{4, 6}});
    story.Drop<WorkerHeartbeat>();
    story.Passes(kHeartbeatInterval);
    CHECK(story.Wants<WorkerHeartbeat>().progress->steps_interrupted == 1);
  }
  SECTION("also while it waits for another member at the step's end that has failed") {
    story.Happens(StepDone{20, 2.0, 0.1, false});
    story.order.at_boundary = false;
    story.Orders();
    story.Wants<InterruptStep>();
    story.Happens(Settled{1, 2});
    story.Happens(CommandFailed{"interrupted"});
    story.Wants<Reconfigure>();
    story.SetsUp(2);
    CHECK(story.Trains().ranges == Ranges{{6, 8}});
  }
  SECTION("and once no member works under the old plan, no failure interrupts it") {
    story.Happens(StepDone{20, 2.0, 0.1, false});
    story.Happens(Settled{1, 2});
    story.order.at_boundary = false;
    story.Orders();
    CHECK(story.Idle<InterruptStep>());
    story.SetsUp(2);
  }
}

TEST_CASE("A plan that may wait waits for a pseudo-gradient that is being made") {
  Group story;
  story.Starts();
  story.TrainsSteps(4);
  const ContributionId first = story.Wants<CaptureDelta>().contribution;
  story.Happens(DeltaCaptured{first});
  story.order.at_boundary = true;
  story.order.plan = PlanOf(2, "w1", "w2");
  story.Orders();
  CHECK(story.Idle<InterruptStep>());
  story.Trains();
  CHECK(story.Idle<Reconfigure>());
  story.Drop<WorkerHeartbeat>();
  story.Passes(kHeartbeatInterval);
  CHECK(story.Wants<WorkerHeartbeat>().progress->setting_up == 0);
  story.Happens(DeltaReady{first});
  story.SetsUp(2);
  CHECK(story.Wants<PushRequest>().contribution == first);
}

TEST_CASE("What is captured when the island begins anew ends soon") {
  Group story;
  story.Starts();
  story.TrainsSteps(4);
  story.Happens(DeltaCaptured{story.Wants<CaptureDelta>().contribution});
  story.Happens(CommandFailed{"w2 is unavailable"});  // the step after it
  story.Drop<Reconfigure>();
  story.Happens(CommandFailed{"still unavailable"});
  ++story.order.generation;
  story.Orders();
  story.Wants<InterruptStep>();
}

TEST_CASE("A plan that comes while one before it is being set up takes its place at once") {
  Group story;
  story.Starts();
  story.Trains();
  CHECK(story.Wants<TrainStep>().ranges == Ranges{{2, 4}});
  story.order.at_boundary = true;
  story.order.plan = PlanOf(2, "w1", "w2");
  story.Orders();
  story.Happens(StepDone{20, 2.0, 0.1, false});
  CHECK(story.Wants<Reconfigure>().plan.number == 2);
  SECTION("if no step goes on any more: the others may not have that plan") {
    story.Happens(Settled{1, 2});
    story.order.plan = PlanOf(3, "w1", "w2");
    story.Orders();
    story.Wants<InterruptStep>();
    story.Happens(CommandFailed{"interrupted"});
  }
  SECTION("else when the newest step has ended everywhere") {
    story.order.plan = PlanOf(3, "w1", "w2");
    story.Orders();
    CHECK(story.Idle<InterruptStep>());
    story.Happens(Settled{1, 2});
    story.Wants<InterruptStep>();
    story.Happens(CommandFailed{"interrupted"});
  }
  story.SetsUp(3);
  CHECK(story.Trains().ranges == Ranges{{4, 6}});
}

// ---- a leader hands over ----

class Heir : public Following {
 public:
  // w1 follows w2, and is then to take over from it.
  void IsToTakeOver() {
    order.spec.checkpoint.peer_copies = 0;  // that is saving_test's
    Starts();
    order.plan = PlanOf(2, "w1", "w2");
    order.at_boundary = true;
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

MemberOrder OrderToFollow(const Story& story, const NodeId& heir) {
  MemberOrder order;
  order.job = story.order.job;
  order.spec = story.order.spec;
  order.island = story.order.island;
  order.generation = story.order.generation;
  order.sequence = story.order.sequence + 1;
  order.plan = PlanOf(2, heir, "w1");
  order.at_boundary = true;
  return order;
}

TEST_CASE("A leader that ends works on until it is to follow, and hands over what it knows") {
  Group story;
  story.Starts();
  story.TrainsSteps(4);
  const PushRequest request = story.AsksToPush();
  story.IsGranted(request.contribution);
  CHECK(story.Trains().ranges == Ranges{{8, 10}});
  story.Happens(ShutdownRequested{"SIGTERM"});
  CHECK(story.Wants<Leaving>().reason == "SIGTERM");
  CHECK(story.Wants<TrainStep>().ranges == Ranges{{10, 12}});
  CHECK(story.Doing().find("leaves (SIGTERM): training") == 0);
  story.Says(OrderToFollow(story, "w2"));
  CHECK(story.Idle<InterruptStep>());
  CHECK(story.Idle<HandOver>());  // the step is finished first
  story.Happens(StepDone{20, 2.0, 0.1, false});
  const Leadership known = story.Wants<HandOver>().leadership;
  CHECK(known.generation == 1);
  CHECK(known.adopted);
  CHECK(known.base_version == 0);
  CHECK(known.in_flight == request.contribution);
  CHECK(known.in_flight_work.consumed == Ranges{{0, 8}});
  CHECK(known.local.consumed == Ranges{{8, 12}});
  CHECK(known.local.steps == 2);
  CHECK(known.leased == Ranges{{12, 20}});
  CHECK_FALSE(known.step_failed);
  CHECK(story.Idle<TrainStep>());
  story.Wants<CancelTransfers>();
  story.Drop<WorkerHeartbeat>();
  story.Happens(HandedOver{});
  CHECK(story.Wants<Follow>().order.plan.number == 2);
  story.Passes(std::chrono::milliseconds(1));
  const WorkerHeartbeat heartbeat = story.Wants<WorkerHeartbeat>();
  CHECK_FALSE(heartbeat.progress.has_value());
  CHECK(heartbeat.member->holds);
  CHECK(heartbeat.member->seen_sequence == story.order.sequence + 1);
  SECTION("it ends when it is ordered to") {
    MemberOrder stop = OrderToFollow(story, "w2");
    stop.sequence += 1;
    stop.run = RunState::kStop;
    story.Says(stop);
    story.Wants<Unfollow>();
  }
  SECTION("or when its time is over") { story.Passes(kLeaveLimit); }
  CHECK(story.Wants<Stop>().exit_code == 0);
}

TEST_CASE("A leader that ends without an order to hand over ends at its time limit") {
  Group story;
  story.Starts();
  story.Happens(ShutdownRequested{"SIGTERM"});
  story.Wants<Leaving>();
  story.TrainsSteps(3);
  story.Passes(kLeaveLimit);
  story.Trains();  // the one under way
  CHECK(story.Wants<Stop>().exit_code == 0);
}

TEST_CASE(
    "A leader that ends stays for a plan without a follower, and then for its successor's plan") {
  constexpr Duration kNearly = kLeaveLimit - std::chrono::seconds(1);
  Group story;
  story.Starts();
  story.Trains();
  story.Happens(ShutdownRequested{"SIGTERM"});
  story.Passes(kNearly);
  story.order.at_boundary = true;
  story.order.plan = PlanOf(2, "w1", "w3");
  story.Orders();
  story.Passes(kNearly);  // the step lasts longer than was foreseen
  story.Trains();
  story.Passes(kNearly);
  story.Happens(Settled{1, 2});
  story.Passes(kNearly);
  story.SetsUp(2);
  story.Trains();
  story.Passes(kNearly);  // planning again
  story.Says(OrderToFollow(story, "w3"));
  story.Passes(kNearly);
  story.Trains();
  story.Passes(kNearly);
  story.Wants<HandOver>();
  story.Happens(HandedOver{});
  story.Passes(kNearly);
  CHECK(story.Idle<Stop>());
  story.Passes(std::chrono::seconds(1));
  CHECK(story.Wants<Stop>().exit_code == 0);
}

TEST_CASE("A leader that ends is not kept by what has nothing to do with its leaving") {
  Group story;
  story.Starts();
  story.Happens(ShutdownRequested{"SIGTERM"});
  for (Duration passed{0}; passed < kLeaveLimit; passed += std::chrono::seconds(10)) {
    CHECK(story.Idle<Stop>());
    story.Orders();  // of the same plan
    story.Trains();
    story.Passes(std::chrono::seconds(10));
  }
  story.Trains();
  CHECK(story.Wants<Stop>().exit_code == 0);
}

TEST_CASE("A leader with all of the plan hands over too, where another worker shares the island") {
  Group story;
  story.order.plan = Alone(1, "w1");
  SECTION("to a spare one") {}
  SECTION("but is not waited for without another worker") { story.order.shared = false; }
  story.Attaches();
  story.Orders();
  story.Prepares();
  story.SetsUp(1, false);
  story.Pulls(0);
  story.Adopts(0, AdoptMode::kReplace);
  story.Leases(20);
  story.Happens(ShutdownRequested{"SIGTERM"});
  if (!story.order.shared) {
    story.Trains();
    story.Wants<Leaving>();
    CHECK(story.Wants<Stop>().exit_code == 0);
    return;
  }
  story.Wants<Leaving>();
  CHECK(story.Idle<Stop>());
  story.Says(OrderToFollow(story, "w2"));
  story.Trains();
  CHECK(story.Wants<HandOver>().leadership.local.steps == 1);
  story.Happens(HandedOver{});
  CHECK(story.Wants<Follow>().order.plan.number == 2);
}

TEST_CASE(
    "A step that failed just before the hand-over may have been taken: its successor finds out") {
  Group story;
  story.Starts();
  story.Trains();
  CHECK(story.Wants<TrainStep>().ranges == Ranges{{2, 4}});
  MemberOrder order = OrderToFollow(story, "w2");
  order.at_boundary = false;  // a member has failed
  story.Says(order);
  story.Wants<InterruptStep>();
  story.Happens(CommandFailed{"interrupted"});
  const Leadership known = story.Wants<HandOver>().leadership;
  CHECK(known.step_failed);
  CHECK(known.stepping == Ranges{{2, 4}});
  CHECK(known.local.consumed == Ranges{{0, 2}});
}

TEST_CASE("A successor requests nothing before it has the control state, and continues from it") {
  Heir story;
  story.IsToTakeOver();
  CHECK(story.Idle<LeaseRequest>());
  CHECK(story.Idle<StartPull>());
  const Reconfigure setup = story.Wants<Reconfigure>();
  CHECK(setup.take_over_from == "w2");
  SECTION("between two steps") {
    story.Happens(Reconfigured{2, true, false, "", story.known});
    CHECK(story.Trains().ranges == Ranges{{4, 6}});
    CHECK(story.Wants<LeaseRequest>().request == 5);
    story.Trains();
    const PushRequest push = story.AsksToPush();
    CHECK(push.consumed == Ranges{{0, 8}});  // each sequence once, whichever leader trained on it
    CHECK(push.inner_steps == 4);
    CHECK(push.contribution == ContributionId{3, 1, 7, 0});  // named as the first leader's
  }
  SECTION("a step that failed was taken by all") {
    story.known.step_failed = true;
    story.known.stepping = {{4, 6}};
    story.known.leased = {{6, 12}};
    story.Happens(Reconfigured{2, true, true, "", story.known});
    CHECK(story.Trains().ranges == Ranges{{6, 8}});
    CHECK(story.AsksToPush().consumed == Ranges{{0, 8}});
  }
  SECTION("a step that failed was not") {
    story.known.step_failed = true;
    story.known.stepping = {{4, 6}};
    story.known.leased = {{6, 12}};
    story.Happens(Reconfigured{2, true, false, "", story.known});
    CHECK(story.Trains().ranges == Ranges{{4, 6}});
  }
  SECTION("the devices' state is lost meanwhile: the same sequences again") {
    story.Happens(Reconfigured{2, false, false, "no member holds layer 1", story.known});
    story.Pulls(0);
    story.Adopts(0, AdoptMode::kReplace);
    CHECK(story.Trains().ranges == Ranges{{0, 2}});
  }
  SECTION("with a contribution in flight, which it goes on pushing") {
    story.known.in_flight = ContributionId{3, 1, 7, 0};
    story.known.in_flight_work = {4, 80, 160, {{0, 8}}};
    story.known.local = {1, 20, 40, {{8, 10}}};
    story.known.leased = {{10, 20}};
    story.Happens(Reconfigured{2, true, false, "", story.known});
    CHECK(story.Wants<PushRequest>().consumed == Ranges{{0, 8}});
    story.IsGranted(*story.known.in_flight);
    story.Pushes();
    story.Trains();
    story.Decides(*story.known.in_flight, 1);
    story.Pulls(1);
    story.Trains();
    story.Adopts(1, AdoptMode::kCarry);
    CHECK(story.Trains().ranges == Ranges{{14, 16}});
  }
  SECTION("and once is enough: later plans are set up as usual") {
    story.Happens(Reconfigured{2, true, false, "", story.known});
    story.Trains();
    story.order.plan = PlanOf(3, "w1", "w3");
    story.order.takes_over_from.clear();
    story.Orders();
    story.Trains();
    CHECK(story.Wants<Reconfigure>().take_over_from.empty());
  }
}

TEST_CASE("A hand-over that fails is tried again, and a new generation ends it") {
  Heir story;
  story.IsToTakeOver();
  story.Wants<Reconfigure>();
  story.Happens(CommandFailed{"w2: it has not led this island in this generation"});
  story.Passes(std::chrono::seconds(1));
  CHECK(story.Wants<Reconfigure>().take_over_from == "w2");
  story.order.generation = 2;
  story.order.plan.number = 3;
  story.order.takes_over_from.clear();
  story.order.author = 5;
  story.Orders();
  story.Happens(CommandFailed{"interrupted"});
  CHECK(story.Wants<Reconfigure>().take_over_from.empty());
  story.Happens(Reconfigured{3, true, false, ""});
  story.Pulls(0);
  story.Adopts(0, AdoptMode::kReplace);
}

}  // namespace
}  // namespace atl::worker
