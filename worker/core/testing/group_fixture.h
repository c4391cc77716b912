// The fixture of tests of islands of several workers: w1 leads, w2 follows, or the reverse.

#ifndef ATOLL_WORKER_CORE_TESTING_GROUP_FIXTURE_H_
#define ATOLL_WORKER_CORE_TESTING_GROUP_FIXTURE_H_

#include "worker/core/testing/fixture.h"

namespace atl::worker {

using Ranges = std::vector<PositionRange>;

// Two stages of one layer each, two micro-batches of one sequence.
inline IslandPlan MakeTwoStagePlan(int64_t number, const NodeId& leader, const NodeId& other) {
  IslandPlan plan;
  plan.number = number;
  plan.members = {{leader, 5, "tcp://" + leader, ""}, {other, 7, "tcp://" + other, ""}};
  plan.replicas.push_back({{{0, 1, {leader + "/0"}, {}}, {1, 1, {other + "/0"}, {}}}, 1, 2});
  for (int32_t stage = 0; stage < 2; ++stage) {
    std::vector<PlanOp> compute;
    for (const PlanOpKind kind :
         {PlanOpKind::kForward, PlanOpKind::kInputGradient, PlanOpKind::kWeightGradient}) {
      for (int32_t m = 0; m < 2; ++m) compute.push_back({kind, stage, m, 0, false});
    }
    plan.programs.push_back(
        CompleteProgram(plan, plan.replicas[0].stages[stage].devices[0], compute));
  }
  return plan;
}

// All on one worker.
inline IslandPlan Alone(int64_t number, const NodeId& worker) {
  IslandPlan plan;
  plan.number = number;
  plan.members = {{worker, 5, "tcp://" + worker, ""}};
  plan.replicas.push_back({{{0, 2, {worker + "/0"}, {}}}, 2, 1});
  std::vector<PlanOp> compute;
  for (const PlanOpKind kind :
       {PlanOpKind::kForward, PlanOpKind::kInputGradient, PlanOpKind::kWeightGradient}) {
    compute.push_back({kind, 0, 0, 0, false});
  }
  plan.programs.push_back(CompleteProgram(plan, worker + "/0", compute));
  return plan;
}

class Group : public Fixture {
 public:
  Group() {
    order.plan = MakeTwoStagePlan(1, "w1", "w2");
    order.shared = true;
    order.spec.checkpoint.peer_copies = 0;  // but where saving is the matter
  }
  void SetsUp(int64_t number, bool kept = true, bool step_taken = false) {
    const Reconfigure setup = Wants<Reconfigure>();
    CHECK(setup.plan.number == number);
    CHECK(setup.generation == order.generation);
    HandleEvent(Reconfigured{number, kept, step_taken, kept ? "" : "no member holds layer 1"});
  }
  void Starts() {
    Attaches();
    Orders();
    Prepares();
    CHECK(GetActivity() == "setting up plan 1 of 2 workers");
    CHECK(Idle<StartPull>());  // no device owns anything yet
    SetsUp(1, false);          // there was nothing to lose
    Pulls(order.committed_version);
    Adopts(order.committed_version, AdoptMode::kReplace);
    Leases(20);
  }
  // A larger plan while a step goes on.
  void PlansAgain(const IslandPlan& plan) {
    order.plan = plan;
    Orders();
    Wants<InterruptStep>();
  }
};

class FollowerFixture : public Fixture {
 public:
  FollowerFixture() {
    member.job = order.job;
    member.spec = order.spec;
    member.island = 3;
    member.generation = 1;
    member.plan = MakeTwoStagePlan(1, "w2", "w1");
  }
  void Ordered() {
    member.sequence = ++order.sequence;
    Says(member);
  }
  void Starts() {
    Attaches();
    Ordered();
    Prepares();
    CHECK(Wants<Follow>().order.plan.number == 1);
    HandleEvent(FollowerState{1, "following w2 under plan 1"});
  }
  MemberProgress AwaitMemberProgress() {
    Drop<WorkerHeartbeat>();
    Passes(kHeartbeatInterval);
    const WorkerHeartbeat heartbeat = Wants<WorkerHeartbeat>();
    CHECK_FALSE(heartbeat.progress.has_value());
    return *heartbeat.member;
  }
  MemberOrder member;
};

}  // namespace atl::worker

#endif  // ATOLL_WORKER_CORE_TESTING_GROUP_FIXTURE_H_
