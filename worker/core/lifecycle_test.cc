// Tests of events around the rounds: generations, orders, pauses, checkpoints, the end.

#include <catch2/catch.hpp>
#include <cmath>

#include "common/protocol/learning_rate.h"
#include "worker/core/leases.h"
#include "worker/core/testing/fixture.h"

namespace atl::worker {
namespace {

using Ranges = std::vector<PositionRange>;
constexpr Duration kWhile = kRetryInterval * 2;

TEST_CASE("When shards move to another server, transfers start again there") {
  Fixture fixture;
  fixture.Starts();
  fixture.TrainsSteps(4);
  fixture.IsGranted(fixture.AwaitPushRequest().contribution);
  fixture.Wants<PushShards>();
  fixture.HandleEvent(PushShardDone{{"job-1", 3, 1, 5, 0, 0}, ShardPushStatus::kStaged, "", 400});
  fixture.order.shards[1].endpoint = "tcp://ps3";
  fixture.Orders();
  fixture.Wants<CancelTransfers>();
  const PushShards again = fixture.Wants<PushShards>();
  REQUIRE(again.shards.size() == 1);
  CHECK(again.shards[0].endpoint == "tcp://ps3");
}

TEST_CASE("A new generation forgets leases, contribution and local steps") {
  Fixture fixture;
  fixture.Starts();
  fixture.TrainsSteps(4);
  const ContributionId c = fixture.AwaitPushRequest().contribution;
  fixture.IsGranted(c);
  fixture.Wants<PushShards>();
  fixture.order.generation = 2;
  fixture.order.committed_version = 4;
  fixture.Orders();
  fixture.Wants<InterruptStep>();
  fixture.Wants<CancelTransfers>();
  CHECK(fixture.Idle<StartPull>());
  fixture.Trains();  // the step that was going on had ended; it counts for nothing
  fixture.IsSetUp(/*kept=*/true);
  fixture.Pulls(4);
  fixture.Adopts(4, AdoptMode::kReplace);
  fixture.Leases(20);
  CHECK(fixture.Trains().ranges == Ranges{{20, 22}});
  fixture.TrainsSteps(3);
  CHECK(fixture.AwaitPushRequest().contribution == ContributionId{3, 2, 5, 4});
}

TEST_CASE("Messages of old orders, epochs, generations or other clusters have no effect") {
  Fixture fixture;
  fixture.Starts();
  IslandOrder old = fixture.order;
  old.run = RunState::kStop;
  fixture.Says(old);  // the same sequence
  old.sequence += 10;
  old.generation = 0;
  fixture.Says(old);
  old.generation = 1;
  fixture.HandleEvent(Received{{"w1", 5, 0, old}});  // an old coordinator
  fixture.HandleEvent(Received{{"w1", 4, 1, old}});  // to our predecessor
  fixture.HandleEvent(Received{{"w2", 5, 1, old}});
  CHECK(fixture.Idle<ReleaseJob>());
  // A restarted coordinator counts its orders from the start.
  ++fixture.epoch;
  fixture.order.sequence = 0;
  fixture.order.run = RunState::kPause;
  fixture.order.reason = "by a user";
  fixture.Orders();
  fixture.Trains();
  CHECK(fixture.GetActivity() == "paused: by a user");
}

TEST_CASE("A pause finishes the step and holds; the round under way still ends") {
  Fixture fixture;
  fixture.Starts();
  fixture.TrainsSteps(4);
  const PushRequest request = fixture.AwaitPushRequest();
  CHECK(request.gradient_norm == 3);
  CHECK(request.learning_rate > 0);
  fixture.order.run = RunState::kPause;
  fixture.Orders();
  fixture.Trains();
  CHECK(fixture.Idle<TrainStep>());
  fixture.Decides(request.contribution, 1);
  fixture.Pulls(1);
  fixture.Adopts(1, AdoptMode::kCarry);
  CHECK(fixture.Idle<TrainStep>());
  fixture.order.run = RunState::kRun;
  fixture.Orders();
  fixture.Wants<TrainStep>();
}

TEST_CASE("A stop drops the job, also while it is being opened") {
  Fixture fixture;
  SECTION("while training") {
    fixture.Starts();
    fixture.order.run = RunState::kStop;
    fixture.Orders();
    CHECK_FALSE(fixture.Wants<ReleaseJob>().removed);  // what is saved stays
    fixture.Trains();
    CHECK(fixture.Idle<TrainStep>());
  }
  SECTION("while preparing") {
    fixture.Attaches();
    fixture.Orders();
    fixture.Wants<Prepare>();
    fixture.order.run = RunState::kStop;
    fixture.Orders();
    fixture.Wants<ReleaseJob>();
    fixture.HandleEvent(Prepared{"job-1", {fixture.order.layers, 1000, 100, 7}});
    CHECK(fixture.Idle<JobPrepared>());
  }
  CHECK(fixture.GetActivity() == "idle");
  fixture.Passes(kWhile);
  fixture.Drop<WorkerHeartbeat>();
  fixture.Passes(kWhile);
  CHECK_FALSE(fixture.Wants<WorkerHeartbeat>().progress.has_value());
}

TEST_CASE("preparation_that_is_not_wanted_any_more_is_interrupted") {
  Fixture fixture;
  fixture.Attaches();
  fixture.Says(PrepareJob{"job-1", fixture.order.spec});
  fixture.Wants<Prepare>();
  SECTION("cancelled before it has an island") {
    IslandOrder stop = fixture.order;
    stop.run = RunState::kStop;
    fixture.Says(stop);
    fixture.Wants<InterruptStep>();
    fixture.HandleEvent(PrepareFailed{"job-1", "interrupted"});
    CHECK(fixture.Idle<JobRefused>());
  }
  SECTION("another job is requested") {
    fixture.Says(PrepareJob{"job-2", fixture.order.spec});
    fixture.Wants<InterruptStep>();
    CHECK(fixture.Idle<Prepare>());
    fixture.HandleEvent(PrepareFailed{"job-1", "interrupted"});
    CHECK(fixture.Idle<JobRefused>());
    CHECK(fixture.Wants<Prepare>().job == "job-2");
  }
  SECTION("it is ordered to run another job") {
    fixture.order.job = "job-2";
    fixture.Orders();
    fixture.Wants<InterruptStep>();
    fixture.HandleEvent(PrepareFailed{"job-1", "interrupted"});
    CHECK(fixture.Wants<Prepare>().job == "job-2");
  }
  SECTION("SIGTERM, and the disk never answers") {
    fixture.HandleEvent(ShutdownRequested{"SIGTERM"});
    fixture.Wants<InterruptStep>();
    CHECK(fixture.Idle<Stop>());
    fixture.Passes(std::chrono::seconds(5));
    fixture.Wants<Stop>();
  }
}

TEST_CASE("What a worker measures is in its heartbeats, soon after it has begun") {
  Fixture fixture;
  fixture.Attaches();
  fixture.Drop<WorkerHeartbeat>();
  const auto beats = [&] {
    fixture.Passes(std::chrono::milliseconds(500));
    const auto heartbeat = fixture.Next<WorkerHeartbeat>();
    CHECK(fixture.Idle<WorkerHeartbeat>());
    return heartbeat;
  };
  fixture.HandleEvent(Measuring{"measures the link to w2 (1 of 2)"});
  fixture.HandleEvent(Measuring{"measures the link to w3 (2 of 2)"});
  const auto first = beats();
  REQUIRE(first.has_value());
  CHECK(first->measuring == "measures the link to w3 (2 of 2)");
  CHECK_FALSE(beats().has_value());  // nothing new
  fixture.HandleEvent(Measuring{""});
  const auto last = beats();
  REQUIRE(last.has_value());
  CHECK(last->measuring.empty());
}

TEST_CASE("a_worker_without_a_plan_saves_to_its_disk_between_contributions_only") {
  Fixture fixture;
  fixture.order.spec.schedule.checkpoint_every_steps = 3;
  fixture.Starts();
  fixture.TrainsSteps(3);
  SaveState save = fixture.Wants<SaveState>();
  CHECK(save.tier == Tier::kDisk);
  CHECK(save.about.base_version == 0);
  CHECK(save.about.inner_step == 3);
  CHECK(save.about.consumed == Ranges{{0, 6}});
  fixture.HandleEvent(StateCopied{Kept::kCopied});
  fixture.HandleEvent(StateSaved{{}, "", Tier::kDisk});
  fixture.Trains();
  const PushRequest request = fixture.AwaitPushRequest();
  fixture.TrainsSteps(3);
  CHECK(fixture.Idle<SaveState>());  // due, but a contribution is in flight
  fixture.Decides(request.contribution, 1);
  fixture.Pulls(1);
  fixture.Trains();
  fixture.Adopts(1, AdoptMode::kCarry);
  save = fixture.Wants<SaveState>();
  CHECK(save.about.base_version == 1);
  CHECK(save.about.consumed == Ranges{{8, 16}});
}

TEST_CASE("restarted_worker_without_plan_resumes_from_ordered_save") {
  Fixture fixture({"job-1"});
  fixture.order.committed_version = 7;
  fixture.order.resume = LocalCheckpoint{"job-1", 3, 7, 30, {{100, 106}}, 9};
  fixture.Attaches();
  fixture.Orders();
  fixture.Wants<Prepare>();
  fixture.HandleEvent(Prepared{"job-1", {fixture.order.layers, 1000, 100, 7}});
  const Reconfigure setup = fixture.Wants<Reconfigure>();
  CHECK(setup.plan.number == 0);
  CHECK(setup.resume == 9);
  CHECK(fixture.Idle<StartPull>());
  Reconfigured done{0, true, false};
  SECTION("and pushes what the save holds with what follows") {
    done.resumed = true;
    fixture.HandleEvent(done);
    fixture.Pulls(7);
    fixture.Adopts(7, AdoptMode::kKeep);
    fixture.leased = 106;
    fixture.Leases(20);
    fixture.Trains();
    const PushRequest request = fixture.AwaitPushRequest();
    CHECK(request.contribution.base_version == 7);
    CHECK(request.consumed == Ranges{{100, 108}});
    CHECK(request.inner_steps == 4);
    CHECK(request.tokens == 80);
  }
  SECTION("but trains on the same sequences from the committed version, if it is damaged") {
    fixture.HandleEvent(done);
    fixture.Pulls(7);
    fixture.Adopts(7, AdoptMode::kReplace);
    CHECK(fixture.Trains().ranges == Ranges{{100, 102}});
  }
}

TEST_CASE("What was measured is said again when the coordinator is back: it may be another one") {
  Fixture fixture;
  fixture.Attaches();
  fixture.Says(PrepareJob{"job-1", fixture.order.spec});
  fixture.Wants<Prepare>();
  const DeviceProfile profile{"w1/0", "cpu", "1", 7, {LayerCost{}}};
  fixture.HandleEvent(Prepared{"job-1", {fixture.order.layers, 1000, 100, 7}, {profile}});
  CHECK(fixture.Wants<JobPrepared>().profiles.size() == 1);
  fixture.HandleEvent(LinksMeasured{"job-1", 4, {{"w1", "w2", 1'000'000, 1e8}}, ""});
  fixture.HandleEvent(LinksMeasured{"job-1", 5, {{"w1", "w3", 1'000'000, 1e7}}, ""});
  CHECK(fixture.Drop<LinksMeasured>() == 2);
  fixture.HandleEvent(ConnectionLost{"it restarts"});
  fixture.Attaches();
  CHECK(fixture.Wants<JobPrepared>().profiles == std::vector<DeviceProfile>{profile});
  const LinksMeasured again = fixture.Wants<LinksMeasured>();
  CHECK(again.request == 0);
  REQUIRE(again.links.size() == 2);
  CHECK(again.links[0].to == "w2");
  CHECK(again.links[1].bandwidth_bytes_per_s == 1e7);
  fixture.Says(Welcome{});  // repeated: once a connection is enough
  CHECK(fixture.Idle<LinksMeasured>());
}

TEST_CASE("A loss that is not a number is never pushed: back to the committed version") {
  Fixture fixture;
  fixture.Starts();
  fixture.TrainsSteps(2);
  fixture.Trains(std::nan(""));
  fixture.Pulls(0);
  const AdoptPulled adopt = fixture.Wants<AdoptPulled>();
  CHECK(adopt.mode == AdoptMode::kReplace);
  CHECK(adopt.reset_moments);
  fixture.HandleEvent(Adopted{0});
  CHECK(fixture.Trains().ranges == Ranges{{0, 2}});
}

TEST_CASE("loss_that_stays_not_finite_ends_in_one_refusal_with_the_reason") {
  Fixture fixture;
  fixture.Starts();
  for (int i = 0; i < kNotFiniteTriesMax; ++i) {
    REQUIRE(fixture.Idle<JobRefused>());
    fixture.Trains(2.0);
    fixture.Trains(NAN);
    if (i + 1 < kNotFiniteTriesMax) {
      fixture.Pulls(0);
      fixture.Adopts(0, AdoptMode::kReplace);
    }
  }
  CHECK(fixture.Drop<WorkerLog>() == 1);
  CHECK(fixture.Wants<JobRefused>().job == "job-1");
  CHECK(fixture.Idle<TrainStep>());
  CHECK(fixture.Idle<StartPull>());
  // Until it is stopped it repeats that, and does nothing else.
  fixture.Passes(kWhile);
  fixture.Wants<JobRefused>();
  CHECK(fixture.Idle<TrainStep>());
  fixture.order.run = RunState::kStop;
  fixture.Orders();
  fixture.Drop<JobRefused>();
  fixture.Passes(kWhile);
  CHECK(fixture.Idle<JobRefused>());
}

TEST_CASE("command_that_fails_for_good_is_refused_at_once_and_one_that_may_pass_backs_off") {
  Fixture fixture;
  fixture.Starts();
  fixture.Wants<TrainStep>();
  SECTION("for good") {
    fixture.HandleEvent(CommandFailed{"t.bin: ends at byte 7", true});
    CHECK(fixture.Wants<JobRefused>().reason == "t.bin: ends at byte 7");
    fixture.Passes(std::chrono::minutes(5));
    CHECK(fixture.Idle<TrainStep>());
  }
  SECTION("it may pass") {
    int tries = 0;
    fixture.HandleEvent(CommandFailed{"t.bin: Input/output error"});
    const Instant end = fixture.now + std::chrono::minutes(10);
    while (fixture.now < end) {
      fixture.Passes(std::chrono::seconds(1));
      fixture.IsSetUp(/*kept=*/true);
      if (!fixture.Next<TrainStep>()) continue;
      ++tries;
      fixture.HandleEvent(CommandFailed{"t.bin: Input/output error"});
    }
    CHECK(tries >= 60);
    CHECK(tries <= 90);
    CHECK(fixture.Drop<WorkerLog>() == 1);
    CHECK(fixture.Idle<JobRefused>());
    fixture.Passes(std::chrono::minutes(1));
    fixture.IsSetUp(/*kept=*/true);
    fixture.Trains();  // and on it goes
    fixture.Trains();
  }
}

TEST_CASE("SIGTERM: the step ends, the state is saved, the worker takes its leave") {
  Fixture fixture;
  fixture.order.spec.schedule.checkpoint_every_steps = 100;
  fixture.Starts();
  fixture.Trains();
  fixture.HandleEvent(ShutdownRequested{"SIGTERM"});
  CHECK(fixture.Idle<Stop>());
  fixture.Trains();
  CHECK(fixture.Wants<SaveState>().about.inner_step == 2);
  fixture.HandleEvent(StateCopied{Kept::kCopied});
  SECTION("as it should") { fixture.HandleEvent(StateSaved{{}, "", Tier::kDisk}); }
  SECTION("or, if the disk hangs, after a limit") { fixture.Passes(std::chrono::seconds(20)); }
  CHECK(fixture.Wants<Leaving>().reason == "SIGTERM");
  CHECK(fixture.Wants<Stop>().exit_code == 0);
}

TEST_CASE("The heartbeat has the figures that users see") {
  Fixture fixture;
  fixture.Starts();
  fixture.TrainsSteps(2);
  fixture.Drop<WorkerHeartbeat>();
  fixture.Passes(kHeartbeatInterval);
  const IslandProgress progress = *fixture.Wants<WorkerHeartbeat>().progress;
  CHECK(progress.ready);
  CHECK(progress.seen_sequence == fixture.order.sequence);
  CHECK(progress.inner_step == 2);
  CHECK(progress.tokens == 40);
  CHECK(progress.activity == "training");
  CHECK(progress.tokens_per_s == Approx(200));
  CHECK(progress.step_seconds_idle_link == Approx(0.1));
  CHECK(progress.pulled_bytes == 600);
}

TEST_CASE("The figures of a job do not include those of the one before") {
  Fixture fixture;
  fixture.Starts();
  fixture.TrainsSteps(4);
  const PushRequest request = fixture.AwaitPushRequest();
  fixture.IsGranted(request.contribution);
  fixture.Pushes();
  fixture.Drop<WorkerHeartbeat>();
  fixture.Passes(kHeartbeatInterval);
  const IslandProgress before = *fixture.Wants<WorkerHeartbeat>().progress;
  CHECK(before.pushed_bytes == 600);
  CHECK(before.router_balance == 2.5);
  CHECK(before.router_z == 0.75);
  const auto next_job = [&] {
    fixture.order.job = "job-2";
    fixture.order.run = RunState::kRun;
    fixture.Orders();
    fixture.Drop<WorkerHeartbeat>();
    fixture.Passes(kHeartbeatInterval);
    const IslandProgress progress = *fixture.Wants<WorkerHeartbeat>().progress;
    CHECK(progress.job == "job-2");
    CHECK(progress.pushed_bytes == 0);
    CHECK(progress.pulled_bytes == 0);
    CHECK(progress.inner_step == 0);
    CHECK(progress.train_loss == 0);
    CHECK(progress.router_balance == 0);
    CHECK(progress.tokens_per_s == 0);
    CHECK(progress.step_seconds_idle_link == 0);
  };
  SECTION("which has ended") {
    fixture.order.run = RunState::kStop;
    fixture.Orders();
    next_job();
  }
  SECTION("which goes on without this worker") { next_job(); }
}

TEST_CASE("The learning rate counts all islands' tokens, and one island's as they are") {
  Fixture fixture;
  fixture.order.tokens_committed = 1000;
  fixture.order.active_islands = 3;
  fixture.Starts();
  const InnerSpec& inner = fixture.order.spec.inner;
  CHECK(fixture.Trains().learning_rate == LearningRate(inner, 100000, 1000 + 3 * 20, 1));
  CHECK(fixture.Trains().learning_rate == LearningRate(inner, 100000, 1000 + 3 * 40, 1));
}

TEST_CASE("Steps from a version have the sequences of the ramp at its tokens") {
  Fixture fixture;
  fixture.order.spec.inner.batch_ramp = {{0, 1}, {1000, 2}};
  fixture.order.tokens_committed = GENERATE(999, 1000);
  fixture.Starts();
  for (int step = 0; step < 3; ++step) {
    CHECK(Sequences(fixture.Trains().ranges) == (fixture.order.tokens_committed < 1000 ? 1 : 2));
  }
}

TEST_CASE("only_ForgetJob_deletes_saved_states_and_the_hello_lists_what_is_held") {
  Fixture fixture({"job-1", "job-7"});
  fixture.HandleEvent(Connected{});
  CHECK(fixture.Wants<WorkerHello>().held == std::vector<JobId>{"job-1", "job-7"});
  fixture.Says(Welcome{});
  fixture.order.run = RunState::kStop;  // the job has failed
  fixture.Orders();
  CHECK_FALSE(fixture.Wants<ReleaseJob>().removed);
  fixture.Says(ForgetJob{"job-7"});
  const ReleaseJob release = fixture.Wants<ReleaseJob>();
  CHECK(release.job == "job-7");
  CHECK(release.removed);
  fixture.Says(ForgetJob{"job-9"});  // it holds nothing of it
  CHECK(fixture.Idle<ReleaseJob>());
  fixture.HandleEvent(ConnectionLost{"test"});
  fixture.HandleEvent(Connected{});
  CHECK(fixture.Wants<WorkerHello>().held == std::vector<JobId>{"job-1"});
}

TEST_CASE("a_coordinator_of_another_cluster_is_rejected_and_named_in_the_log_once") {
  Fixture fixture;
  fixture.cluster = "00000000000000aa";
  fixture.Starts();
  CHECK(fixture.Wants<RememberCluster>().mark == ClusterMark{"00000000000000aa", fixture.epoch});
  fixture.HandleEvent(ConnectionLost{"test"});
  fixture.HandleEvent(Connected{});
  CHECK(fixture.Wants<WorkerHello>().mark.cluster == "00000000000000aa");
  fixture.cluster = "00000000000000bb";
  fixture.epoch += 10;
  fixture.Says(Refused{"it belongs to cluster 00000000000000aa", false});
  CHECK(fixture.Wants<Note>().text.find("cluster 00000000000000bb") != std::string::npos);
  fixture.Says(Welcome{});
  IslandOrder stop = fixture.order;
  stop.run = RunState::kStop;
  stop.sequence += 100;
  fixture.Says(stop);
  CHECK(fixture.Idle<ReleaseJob>());
  CHECK(fixture.Idle<Note>());
  CHECK(fixture.Idle<RememberCluster>());
  // The right one comes back.
  fixture.cluster = "00000000000000aa";
  fixture.epoch -= 9;
  fixture.Says(Welcome{});
  CHECK(fixture.Wants<RememberCluster>().mark.epoch == fixture.epoch);
  fixture.Trains();
}

TEST_CASE("what_the_coordinator_has_stored_is_written_down_a_little_later_and_said_at_once") {
  Fixture fixture;
  fixture.cluster = "00000000000000aa";
  fixture.Starts();
  fixture.Drop<RememberCluster>();
  fixture.sequence = 7;
  fixture.Says(ForgetJob{"job-9"});
  CHECK(fixture.Idle<RememberCluster>());
  fixture.HandleEvent(ConnectionLost{"test"});
  fixture.HandleEvent(Connected{});
  CHECK(fixture.Wants<WorkerHello>().mark.sequence == 7);
  fixture.sequence = 9;
  fixture.Says(Refused{"say hello first", false});  // no order
  fixture.Passes(kRememberInterval);
  CHECK(fixture.Wants<RememberCluster>().mark.sequence == 7);
}

}  // namespace
}  // namespace atl::worker
