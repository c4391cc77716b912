// Fixture for tests of WorkerCore: plays the coordinator and the trainer, moves the clock, and
// checks the core's actions.

#ifndef ATOLL_WORKER_CORE_TESTING_FIXTURE_H_
#define ATOLL_WORKER_CORE_TESTING_FIXTURE_H_

#include <algorithm>
#include <catch2/catch.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "worker/core/core.h"

namespace atl::worker {

class Fixture {
 public:
  explicit Fixture(std::vector<JobId> held = {}, bool signs = false)
      : core_({.name = "w1",
               .incarnation = 5,
               .hello = {.software_version = "test",
                         .devices = {{"cpu", 1 << 30, 1}},
                         .held = std::move(held)},
               .signs = signs}) {
    order.job = "job-1";
    order.spec.name = "job";
    order.spec.inner.batch_sequences = 2;
    order.spec.data.sequence_length = 10;
    order.spec.schedule.train_tokens = 100000;
    order.spec.schedule.checkpoint_every_steps = 0;
    order.spec.outer.overlap = Overlap::kCarry;
    order.island = 3;
    order.generation = 1;
    order.layers = {{"a", 100}, {"b", 50}};
    order.shards = {{0, 0, 0, 100, "ps1", "tcp://ps1"}, {1, 1, 0, 50, "ps2", "tcp://ps2"}};
    order.pull_order = {1, 0};
    order.steps_this_round = 4;
    order.committed_version = 0;
  }

  // ---- events ----
  void HandleEvent(const Event& event) {
    Actions actions = core_.Step(now, event);
    deadline = actions.deadline;
    for (Action& action : actions.list) pending_.push_back(std::move(action));
  }
  void Says(ToWorkerMessage message) {
    HandleEvent(Received{{"w1", 5, epoch, std::move(message), cluster, sequence}});
  }
  void Attaches() {
    HandleEvent(Connected{});
    Wants<WorkerHello>();
    Says(Welcome{});
  }
  // The coordinator's order, made a newer one.
  void Orders() {
    ++order.sequence;
    Says(order);
  }
  void Passes(Duration time) {
    const Instant end = now + time;
    while (deadline <= end) {
      now = std::max(now, deadline);
      HandleEvent(Tick{});
    }
    now = end;
  }

  // ---- actions that the core issues ----
  // Takes the oldest pending action (or message) of type T; those of other types stay.
  template <typename T>
  std::optional<T> Next() {
    for (auto it = pending_.begin(); it != pending_.end(); ++it) {
      std::optional<T> found = As<T>(*it);
      if (!found) continue;
      pending_.erase(it);
      return found;
    }
    return std::nullopt;
  }
  template <typename T>
  T Wants() {
    std::optional<T> found = Next<T>();
    INFO("it is " << core_.activity());
    REQUIRE(found.has_value());
    return *found;
  }
  template <typename T>
  bool Idle() {
    return !Next<T>().has_value();
  }
  // Forgets pending messages of a type.
  template <typename T>
  int Drop() {
    int count = 0;
    while (Next<T>()) ++count;
    return count;
  }

  // ---- whole passages ----
  void Prepares() {
    Wants<Prepare>();
    HandleEvent(Prepared{order.job, {order.layers, 1000, 100, 7}});
    if (order.plan.number == 0) IsSetUp();
  }
  // On its own device, or under its plan.
  void IsSetUp(bool kept = false, bool step_taken = false) {
    const std::optional<Reconfigure> setup = Next<Reconfigure>();
    if (!setup) return;
    Reconfigured done{setup->plan.number, kept, step_taken};
    done.resumed = setup->resume != 0;
    HandleEvent(done);
  }
  void Pulls(Version version) {
    const StartPull pull = Wants<StartPull>();
    CHECK(pull.version == version);
    HandleEvent(PullDone{pull.pull, 600});
  }
  void Adopts(Version version, AdoptMode mode) {
    const AdoptPulled adopt = Wants<AdoptPulled>();
    CHECK(adopt.version == version);
    CHECK(adopt.mode == mode);
    HandleEvent(Adopted{version});
  }
  // Grants `sequences` from where the last grant ended.
  void Leases(int64_t sequences, bool exhausted = false) {
    const LeaseRequest request = Wants<LeaseRequest>();
    Drop<LeaseRequest>();
    Says(LeaseGrant{order.job,
                    order.island,
                    order.generation,
                    request.request,
                    {{leased, leased + sequences}},
                    exhausted});
    leased += sequences;
  }
  TrainStep Trains(double loss = 2.0) {
    TrainStep step = Wants<TrainStep>();
    int64_t sequences = 0;
    for (const PositionRange& range : step.ranges) sequences += range.size();
    HandleEvent(StepDone{sequences * 10, loss, 0.1, false, 0, 3.0, false, 2.5, 0.75});
    return step;
  }
  void TrainsSteps(int steps) {
    for (int i = 0; i < steps; ++i) Trains();
  }
  PushRequest AwaitPushRequest() {
    const CaptureDelta capture = Wants<CaptureDelta>();
    HandleEvent(DeltaCaptured{capture.contribution});
    HandleEvent(DeltaReady{capture.contribution});
    return Wants<PushRequest>();
  }
  void IsGranted(const ContributionId& contribution) {
    Says(PushGrant{order.job, contribution, {{0}, {1}}});
  }
  void Pushes() {
    const PushShards push = Wants<PushShards>();
    for (const ShardPlacement& shard : push.shards) {
      const ContributionId& c = push.contribution;
      HandleEvent(PushShardDone{
          {push.job, c.island, c.generation, c.incarnation, c.base_version, shard.shard},
          ShardPushStatus::kStaged,
          "",
          shard.elements * 4});
    }
  }
  void Decides(const ContributionId& contribution, Version version, bool accepted = true,
               bool warm_up_again = false) {
    order.committed_version = version;
    order.tokens_committed += 80;
    order.outcome = ContributionOutcome{contribution, version, accepted, warm_up_again, "test"};
    Orders();
  }
  // From nothing to training on version `order.committed_version`.
  void Starts() {
    Attaches();
    Orders();
    Prepares();
    Pulls(order.committed_version);
    Adopts(order.committed_version, AdoptMode::kReplace);
    Leases(20);
  }
  std::string GetActivity() const { return core_.activity(); }

  IslandOrder order;
  int64_t epoch = 1;
  ClusterId cluster;
  int64_t sequence = 0;
  Instant now{};
  Instant deadline = kNever;
  int64_t leased = 0;

 private:
  template <typename T>
  static std::optional<T> As(const Action& action) {
    if constexpr (std::is_constructible_v<Action, T> &&
                  !std::is_constructible_v<WorkerMessage, T>) {
      if (const T* found = std::get_if<T>(&action)) return *found;
    } else if (const Send* send = std::get_if<Send>(&action)) {
      if (const T* found = std::get_if<T>(&send->message)) return *found;
    }
    return std::nullopt;
  }

  WorkerCore core_;
  std::vector<Action> pending_;
};

}  // namespace atl::worker

#endif  // ATOLL_WORKER_CORE_TESTING_FIXTURE_H_
