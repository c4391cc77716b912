// What happens around the rounds: generations, orders, pauses, checkpoints, the end.

#include <catch2/catch.hpp>
#include <cmath>

#include "common/protocol/learning_rate.h"
#include "worker/core/story.h"

namespace atl::worker {
namespace {

using Ranges = std::vector<PositionRange>;
constexpr Duration kWhile = kRetryInterval * 2;

TEST_CASE("When shards move to another server, transfers start again there") {
  Story story;
  story.Starts();
  story.TrainsSteps(4);
  story.IsGranted(story.AsksToPush().contribution);
  story.Wants<PushShards>();
  story.Happens(PushShardDone{{"job-1", 3, 1, 5, 0, 0}, PushStatus::kStaged, "", 400});
  story.order.shards[1].endpoint = "tcp://ps3";
  story.Orders();
  story.Wants<CancelTransfers>();
  const PushShards again = story.Wants<PushShards>();
  REQUIRE(again.shards.size() == 1);
  CHECK(again.shards[0].endpoint == "tcp://ps3");
}

TEST_CASE("A new generation forgets leases, contribution and local steps") {
  Story story;
  story.Starts();
  story.TrainsSteps(4);
  const ContributionId c = story.AsksToPush().contribution;
  story.IsGranted(c);
  story.Wants<PushShards>();
  story.order.generation = 2;
  story.order.committed_version = 4;
  story.Orders();
  story.Wants<InterruptStep>();
  story.Wants<CancelTransfers>();
  CHECK(story.Idle<StartPull>());
  story.Trains();  // the step that was going on had ended; it counts for nothing
  story.IsSetUp(/*kept=*/true);
  story.Pulls(4);
  story.Adopts(4, AdoptMode::kReplace);
  story.Leases(20);
  CHECK(story.Trains().ranges == Ranges{{20, 22}});
  story.TrainsSteps(3);
  CHECK(story.AsksToPush().contribution == ContributionId{3, 2, 5, 4});
}

TEST_CASE("Old orders, epochs, generations and other people's messages change nothing") {
  Story story;
  story.Starts();
  IslandOrder old = story.order;
  old.run = RunState::kStop;
  story.Says(old);  // the same sequence
  old.sequence += 10;
  old.generation = 0;
  story.Says(old);
  old.generation = 1;
  story.Happens(Received{{"w1", 5, 0, old}});  // an old coordinator
  story.Happens(Received{{"w1", 4, 1, old}});  // to our predecessor
  story.Happens(Received{{"w2", 5, 1, old}});
  CHECK(story.Idle<ReleaseJob>());
  // A restarted coordinator counts its orders from the start.
  ++story.epoch;
  story.order.sequence = 0;
  story.order.run = RunState::kPause;
  story.order.reason = "asked to";
  story.Orders();
  story.Trains();
  CHECK(story.Doing() == "paused: asked to");
}

TEST_CASE("A pause finishes the step and holds; the round under way still ends") {
  Story story;
  story.Starts();
  story.TrainsSteps(4);
  const PushRequest request = story.AsksToPush();
  story.order.run = RunState::kPause;
  story.Orders();
  story.Trains();
  CHECK(story.Idle<TrainStep>());
  story.Decides(request.contribution, 1);
  story.Pulls(1);
  story.Adopts(1, AdoptMode::kCarry);
  CHECK(story.Idle<TrainStep>());
  story.order.run = RunState::kRun;
  story.Orders();
  story.Wants<TrainStep>();
}

TEST_CASE("A stop drops the job, also while it is being opened") {
  Story story;
  SECTION("while training") {
    story.Starts();
    story.order.run = RunState::kStop;
    story.Orders();
    CHECK_FALSE(story.Wants<ReleaseJob>().removed);  // what is saved stays
    story.Trains();
    CHECK(story.Idle<TrainStep>());
  }
  SECTION("while preparing") {
    story.Attaches();
    story.Orders();
    story.Wants<Prepare>();
    story.order.run = RunState::kStop;
    story.Orders();
    story.Wants<ReleaseJob>();
    story.Happens(Prepared{"job-1", {story.order.layers, 1000, 100, 7}});
    CHECK(story.Idle<JobPrepared>());
  }
  CHECK(story.Doing() == "idle");
  story.Passes(kWhile);
  story.Drop<WorkerHeartbeat>();
  story.Passes(kWhile);
  CHECK_FALSE(story.Wants<WorkerHeartbeat>().progress.has_value());
}

TEST_CASE("preparation_that_is_not_wanted_any_more_is_interrupted") {
  Story story;
  story.Attaches();
  story.Says(PrepareJob{"job-1", story.order.spec});
  story.Wants<Prepare>();
  SECTION("cancelled before it has an island") {
    IslandOrder stop = story.order;
    stop.run = RunState::kStop;
    story.Says(stop);
    story.Wants<InterruptStep>();
    story.Happens(PrepareFailed{"job-1", "interrupted"});
    CHECK(story.Idle<JobRefused>());
  }
  SECTION("another job is asked for") {
    story.Says(PrepareJob{"job-2", story.order.spec});
    story.Wants<InterruptStep>();
    CHECK(story.Idle<Prepare>());
    story.Happens(PrepareFailed{"job-1", "interrupted"});
    CHECK(story.Idle<JobRefused>());
    CHECK(story.Wants<Prepare>().job == "job-2");
  }
  SECTION("it is ordered to run another job") {
    story.order.job = "job-2";
    story.Orders();
    story.Wants<InterruptStep>();
    story.Happens(PrepareFailed{"job-1", "interrupted"});
    CHECK(story.Wants<Prepare>().job == "job-2");
  }
  SECTION("SIGTERM, and the disk never answers") {
    story.Happens(ShutdownRequested{"SIGTERM"});
    story.Wants<InterruptStep>();
    CHECK(story.Idle<Stop>());
    story.Passes(std::chrono::seconds(5));
    story.Wants<Stop>();
  }
}

TEST_CASE("What a worker measures is in its heartbeats, soon after it has begun") {
  Story story;
  story.Attaches();
  story.Drop<WorkerHeartbeat>();
  const auto beats = [&] {
    story.Passes(std::chrono::milliseconds(500));
    const auto heartbeat = story.Next<WorkerHeartbeat>();
    CHECK(story.Idle<WorkerHeartbeat>());
    return heartbeat;
  };
  story.Happens(Measuring{"measures the line to w2 (1 of 2)"});
  story.Happens(Measuring{"measures the line to w3 (2 of 2)"});
  const auto first = beats();
  REQUIRE(first.has_value());
  CHECK(first->measuring == "measures the line to w3 (2 of 2)");
  CHECK_FALSE(beats().has_value());  // nothing new
  story.Happens(Measuring{""});
  const auto last = beats();
  REQUIRE(last.has_value());
  CHECK(last->measuring.empty());
}

TEST_CASE("a_worker_without_a_plan_saves_to_its_disk_between_contributions_only") {
  Story story;
  story.order.spec.schedule.checkpoint_every_steps = 3;
  story.Starts();
  story.TrainsSteps(3);
  SaveState save = story.Wants<SaveState>();
  CHECK(save.tier == Tier::kDisk);
  CHECK(save.about.base_version == 0);
  CHECK(save.about.inner_step == 3);
  CHECK(save.about.consumed == Ranges{{0, 6}});
  story.Happens(StateCopied{Kept::kCopied});
  story.Happens(StateSaved{{}, "", Tier::kDisk});
  story.Trains();
  const PushRequest request = story.AsksToPush();
  story.TrainsSteps(3);
  CHECK(story.Idle<SaveState>());  // due, but a contribution is in flight
  story.Decides(request.contribution, 1);
  story.Pulls(1);
  story.Trains();
  story.Adopts(1, AdoptMode::kCarry);
  save = story.Wants<SaveState>();
  CHECK(save.about.base_version == 1);
  CHECK(save.about.consumed == Ranges{{8, 16}});
}

TEST_CASE("a_restarted_worker_without_a_plan_goes_on_from_the_save_that_it_is_told") {
  Story story({"job-1"});
  story.order.committed_version = 7;
  story.order.resume = LocalCheckpoint{"job-1", 3, 7, 30, {{100, 106}}, 9};
  story.Attaches();
  story.Orders();
  story.Wants<Prepare>();
  story.Happens(Prepared{"job-1", {story.order.layers, 1000, 100, 7}});
  const Reconfigure setup = story.Wants<Reconfigure>();
  CHECK(setup.plan.number == 0);
  CHECK(setup.resume == 9);
  CHECK(story.Idle<StartPull>());
  Reconfigured done{0, true, false};
  SECTION("and pushes what the save holds with what follows") {
    done.resumed = true;
    story.Happens(done);
    story.Pulls(7);
    story.Adopts(7, AdoptMode::kKeep);
    story.leased = 106;
    story.Leases(20);
    story.Trains();
    const PushRequest request = story.AsksToPush();
    CHECK(request.contribution.base_version == 7);
    CHECK(request.consumed == Ranges{{100, 108}});
    CHECK(request.inner_steps == 4);
    CHECK(request.tokens == 80);
  }
  SECTION("but trains on the same sequences from the committed version, if it is damaged") {
    story.Happens(done);
    story.Pulls(7);
    story.Adopts(7, AdoptMode::kReplace);
    CHECK(story.Trains().ranges == Ranges{{100, 102}});
  }
}

TEST_CASE("What was measured is said again when the coordinator is back: it may be another one") {
  Story story;
  story.Attaches();
  story.Says(PrepareJob{"job-1", story.order.spec});
  story.Wants<Prepare>();
  const DeviceProfile profile{"w1/0", "cpu", "1", 7, {LayerCost{}}};
  story.Happens(Prepared{"job-1", {story.order.layers, 1000, 100, 7}, {profile}});
  CHECK(story.Wants<JobPrepared>().profiles.size() == 1);
  story.Happens(LinksMeasured{"job-1", 4, {{"w1", "w2", 1'000'000, 1e8}}, ""});
  story.Happens(LinksMeasured{"job-1", 5, {{"w1", "w3", 1'000'000, 1e7}}, ""});
  CHECK(story.Drop<LinksMeasured>() == 2);
  story.Happens(ConnectionLost{"it restarts"});
  story.Attaches();
  CHECK(story.Wants<JobPrepared>().profiles == std::vector<DeviceProfile>{profile});
  const LinksMeasured again = story.Wants<LinksMeasured>();
  CHECK(again.request == 0);
  REQUIRE(again.links.size() == 2);
  CHECK(again.links[0].to == "w2");
  CHECK(again.links[1].bandwidth_bytes_per_s == 1e7);
  story.Says(Welcome{});  // repeated: once a connection is enough
  CHECK(story.Idle<LinksMeasured>());
}

TEST_CASE("A loss that is not a number is never pushed: back to the committed version") {
  Story story;
  story.Starts();
  story.TrainsSteps(2);
  story.Trains(std::nan(""));
  story.Pulls(0);
  const AdoptPulled adopt = story.Wants<AdoptPulled>();
  CHECK(adopt.mode == AdoptMode::kReplace);
  CHECK(adopt.reset_moments);
  story.Happens(Adopted{0});
  CHECK(story.Trains().ranges == Ranges{{0, 2}});
}

TEST_CASE("loss_that_stays_not_finite_ends_in_one_refusal_with_the_reason") {
  Story story;
  story.Starts();
  for (int i = 0; i < kNotFiniteTriesMax; ++i) {
    REQUIRE(story.Idle<JobRefused>());
    story.Trains(2.0);
    story.Trains(NAN);
    if (i + 1 < kNotFiniteTriesMax) {
      story.Pulls(0);
      story.Adopts(0, AdoptMode::kReplace);
    }
  }
  CHECK(story.Drop<WorkerLog>() == 1);
  CHECK(story.Wants<JobRefused>().job == "job-1");
  CHECK(story.Idle<TrainStep>());
  CHECK(story.Idle<StartPull>());
  // Until it is told to stop it says so again, and does nothing.
  story.Passes(kWhile);
  story.Wants<JobRefused>();
  CHECK(story.Idle<TrainStep>());
  story.order.run = RunState::kStop;
  story.Orders();
  story.Drop<JobRefused>();
  story.Passes(kWhile);
  CHECK(story.Idle<JobRefused>());
}

TEST_CASE("command_that_fails_for_good_is_refused_at_once_and_one_that_may_pass_backs_off") {
  Story story;
  story.Starts();
  story.Wants<TrainStep>();
  SECTION("for good") {
    story.Happens(CommandFailed{"t.bin: ends at byte 7", true});
    CHECK(story.Wants<JobRefused>().reason == "t.bin: ends at byte 7");
    story.Passes(std::chrono::minutes(5));
    CHECK(story.Idle<TrainStep>());
  }
  SECTION("it may pass") {
    int tries = 0;
    story.Happens(CommandFailed{"t.bin: Input/output error"});
    const Instant end = story.now + std::chrono::minutes(10);
    while (story.now < end) {
      story.Passes(std::chrono::seconds(1));
      story.IsSetUp(/*kept=*/true);
      if (!story.Next<TrainStep>()) continue;
      ++tries;
      story.Happens(CommandFailed{"t.bin: Input/output error"});
    }
    CHECK(tries >= 20);
    CHECK(tries <= 30);
    CHECK(story.Drop<WorkerLog>() == 1);
    CHECK(story.Idle<JobRefused>());
    story.Passes(std::chrono::minutes(1));
    story.IsSetUp(/*kept=*/true);
    story.Trains();  // and on it goes
    story.Trains();
  }
}

TEST_CASE("SIGTERM: the step ends, the state is saved, the worker takes its leave") {
  Story story;
  story.order.spec.schedule.checkpoint_every_steps = 100;
  story.Starts();
  story.Trains();
  story.Happens(ShutdownRequested{"SIGTERM"});
  CHECK(story.Idle<Stop>());
  story.Trains();
  CHECK(story.Wants<SaveState>().about.inner_step == 2);
  story.Happens(StateCopied{Kept::kCopied});
  SECTION("as it should") { story.Happens(StateSaved{{}, "", Tier::kDisk}); }
  SECTION("or, if the disk hangs, after a limit") { story.Passes(std::chrono::seconds(20)); }
  CHECK(story.Wants<Leaving>().reason == "SIGTERM");
  CHECK(story.Wants<Stop>().exit_code == 0);
}

TEST_CASE("The heartbeat tells what people want to know") {
  Story story;
  story.Starts();
  story.TrainsSteps(2);
  story.Drop<WorkerHeartbeat>();
  story.Passes(kHeartbeatInterval);
  const IslandProgress progress = *story.Wants<WorkerHeartbeat>().progress;
  CHECK(progress.ready);
  CHECK(progress.seen_sequence == story.order.sequence);
  CHECK(progress.inner_step == 2);
  CHECK(progress.tokens == 40);
  CHECK(progress.doing == "training");
  CHECK(progress.tokens_per_s == Approx(200));
  CHECK(progress.step_seconds_quiet == Approx(0.1));
  CHECK(progress.pulled_bytes == 600);
}

TEST_CASE("What people are told of a job says nothing of the one before") {
  Story story;
  story.Starts();
  story.TrainsSteps(4);
  const PushRequest request = story.AsksToPush();
  story.IsGranted(request.contribution);
  story.Pushes();
  story.Drop<WorkerHeartbeat>();
  story.Passes(kHeartbeatInterval);
  CHECK(story.Wants<WorkerHeartbeat>().progress->pushed_bytes == 600);
  const auto next_job = [&] {
    story.order.job = "job-2";
    story.order.run = RunState::kRun;
    story.Orders();
    story.Drop<WorkerHeartbeat>();
    story.Passes(kHeartbeatInterval);
    const IslandProgress progress = *story.Wants<WorkerHeartbeat>().progress;
    CHECK(progress.job == "job-2");
    CHECK(progress.pushed_bytes == 0);
    CHECK(progress.pulled_bytes == 0);
    CHECK(progress.inner_step == 0);
    CHECK(progress.train_loss == 0);
    CHECK(progress.tokens_per_s == 0);
    CHECK(progress.step_seconds_quiet == 0);
  };
  SECTION("which has ended") {
    story.order.run = RunState::kStop;
    story.Orders();
    next_job();
  }
  SECTION("which goes on without this worker") { next_job(); }
}

TEST_CASE("The learning rate counts all islands' tokens, and one island's as they are") {
  Story story;
  story.order.tokens_committed = 1000;
  story.order.active_islands = 3;
  story.Starts();
  const InnerSpec& inner = story.order.spec.inner;
  CHECK(story.Trains().learning_rate == LearningRate(inner, 100000, 1000 + 3 * 20));
  CHECK(story.Trains().learning_rate == LearningRate(inner, 100000, 1000 + 3 * 40));
}

TEST_CASE("only_ForgetJob_deletes_saved_states_and_the_hello_lists_what_is_held") {
  Story story({"job-1", "job-7"});
  story.Happens(Connected{});
  CHECK(story.Wants<WorkerHello>().held == std::vector<JobId>{"job-1", "job-7"});
  story.Says(Welcome{});
  story.order.run = RunState::kStop;  // the job has failed
  story.Orders();
  CHECK_FALSE(story.Wants<ReleaseJob>().removed);
  story.Says(ForgetJob{"job-7"});
  const ReleaseJob release = story.Wants<ReleaseJob>();
  CHECK(release.job == "job-7");
  CHECK(release.removed);
  story.Says(ForgetJob{"job-9"});  // it holds nothing of it
  CHECK(story.Idle<ReleaseJob>());
  story.Happens(ConnectionLost{"test"});
  story.Happens(Connected{});
  CHECK(story.Wants<WorkerHello>().held == std::vector<JobId>{"job-1"});
}

TEST_CASE("a_coordinator_of_another_cluster_is_not_obeyed_and_named_in_the_log_once") {
  Story story;
  story.cluster = "00000000000000aa";
  story.Starts();
  CHECK(story.Wants<RememberCluster>().mark == ClusterMark{"00000000000000aa", story.epoch});
  story.Happens(ConnectionLost{"test"});
  story.Happens(Connected{});
  CHECK(story.Wants<WorkerHello>().mark.cluster == "00000000000000aa");
  story.cluster = "00000000000000bb";
  story.epoch += 10;
  story.Says(Refused{"it belongs to cluster 00000000000000aa", false});
  CHECK(story.Wants<Note>().text.find("cluster 00000000000000bb") != std::string::npos);
  story.Says(Welcome{});
  IslandOrder stop = story.order;
  stop.run = RunState::kStop;
  stop.sequence += 100;
  story.Says(stop);
  CHECK(story.Idle<ReleaseJob>());
  CHECK(story.Idle<Note>());
  CHECK(story.Idle<RememberCluster>());
  // The right one comes back.
  story.cluster = "00000000000000aa";
  story.epoch -= 9;
  story.Says(Welcome{});
  CHECK(story.Wants<RememberCluster>().mark.epoch == story.epoch);
  story.Trains();
}

TEST_CASE("what_the_coordinator_has_stored_is_written_down_a_little_later_and_said_at_once") {
  Story story;
  story.cluster = "00000000000000aa";
  story.Starts();
  story.Drop<RememberCluster>();
  story.sequence = 7;
  story.Says(ForgetJob{"job-9"});
  CHECK(story.Idle<RememberCluster>());
  story.Happens(ConnectionLost{"test"});
  story.Happens(Connected{});
  CHECK(story.Wants<WorkerHello>().mark.sequence == 7);
  story.sequence = 9;
  story.Says(Refused{"say hello first", false});  // no order
  story.Passes(kRememberInterval);
  CHECK(story.Wants<RememberCluster>().mark.sequence == 7);
}

}  // namespace
}  // namespace atl::worker
