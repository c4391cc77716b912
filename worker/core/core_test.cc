#include "worker/core/core.h"

#include <catch2/catch.hpp>

#include "worker/core/testing/fixture.h"

namespace atl::worker {
namespace {

using Ranges = std::vector<PositionRange>;
constexpr Duration kWhile = kRetryInterval * 2;

TEST_CASE("A worker says hello until it is welcomed, and again on every connection") {
  Fixture fixture;
  fixture.HandleEvent(Connected{});
  CHECK(fixture.Wants<WorkerHello>().software_version == "test");
  fixture.Passes(kRetryInterval);
  fixture.Wants<WorkerHello>();
  fixture.Says(Welcome{});
  fixture.Wants<WorkerHeartbeat>();
  fixture.Passes(kWhile);
  CHECK(fixture.Idle<WorkerHello>());
  fixture.HandleEvent(ConnectionLost{"reset"});
  fixture.Drop<WorkerHeartbeat>();
  fixture.Passes(kWhile);
  CHECK(fixture.Idle<WorkerHeartbeat>());
  fixture.HandleEvent(Connected{});
  fixture.Wants<WorkerHello>();
}

TEST_CASE("a_heartbeat_interval_that_changes_holds_from_the_last_heartbeat_on") {
  Fixture fixture;
  fixture.Attaches();
  fixture.Drop<WorkerHeartbeat>();
  fixture.Says(Welcome{5 * kHeartbeatInterval, 15 * kHeartbeatInterval});
  fixture.Passes(kHeartbeatInterval);  // the old interval once more
  fixture.Wants<WorkerHeartbeat>();
  fixture.Passes(4 * kHeartbeatInterval);
  CHECK(fixture.Idle<WorkerHeartbeat>());
  fixture.Says(Welcome{});
  fixture.Passes(Duration(1));
  fixture.Wants<WorkerHeartbeat>();
  fixture.Passes(kHeartbeatInterval);
  fixture.Wants<WorkerHeartbeat>();
}

TEST_CASE("A final refusal ends the worker, another one makes it try again") {
  Fixture fixture;
  fixture.HandleEvent(Connected{});
  fixture.Wants<WorkerHello>();
  fixture.Says(Refused{"busy", false});
  CHECK(fixture.GetActivity() == "refused: busy");
  fixture.Passes(kRetryInterval);
  fixture.Wants<WorkerHello>();
  fixture.Says(Refused{"a newer incarnation is attached", true});
  CHECK(fixture.Wants<Stop>().exit_code == 1);
}

TEST_CASE("It prepares a job once and answers every repetition") {
  Fixture fixture;
  fixture.Attaches();
  fixture.Says(PrepareJob{"job-1", fixture.order.spec});
  fixture.Says(PrepareJob{"job-1", fixture.order.spec});
  fixture.Prepares();
  CHECK(fixture.Idle<Prepare>());
  CHECK(fixture.Wants<JobPrepared>().facts.layers == fixture.order.layers);
  fixture.Says(PrepareJob{"job-1", fixture.order.spec});
  fixture.Wants<JobPrepared>();

  fixture.Says(PrepareJob{"job-2", fixture.order.spec});
  fixture.Wants<Prepare>();
  fixture.HandleEvent(PrepareFailed{"job-2", "data.path: no such file"});
  CHECK(fixture.Wants<JobRefused>().reason == "data.path: no such file");
}

TEST_CASE("a_new_request_to_prepare_a_job_finds_its_cause_of_failure_mended") {
  Fixture fixture;
  fixture.Attaches();
  fixture.Says(PrepareJob{"job-1", fixture.order.spec, 1});
  fixture.Wants<Prepare>();
  fixture.HandleEvent(PrepareFailed{"job-1", "data.path: no such file"});
  CHECK(fixture.Wants<JobRefused>().request == 1);
  fixture.Says(PrepareJob{"job-1", fixture.order.spec, 1});  // it has crossed the answer
  fixture.Wants<JobRefused>();
  CHECK(fixture.Idle<Prepare>());
  fixture.Says(PrepareJob{"job-1", fixture.order.spec, 2});
  CHECK(fixture.Idle<JobRefused>());
  fixture.Wants<Prepare>();
}

TEST_CASE("A round: train, request, push, get the outcome, pull, adopt") {
  Fixture fixture;
  fixture.order.spec.outer.overlap = Overlap::kNone;
  fixture.Starts();
  CHECK(fixture.Trains().ranges == Ranges{{0, 2}});
  fixture.TrainsSteps(3);

  const PushRequest request = fixture.AwaitPushRequest();
  CHECK(request.contribution == ContributionId{3, 1, 5, 0});
  CHECK(request.inner_steps == 4);
  CHECK(request.tokens == 80);
  CHECK(request.consumed == Ranges{{0, 8}});
  CHECK(fixture.Idle<TrainStep>());
  CHECK(fixture.GetActivity() == "waiting for version 1 to be decided");

  fixture.IsGranted(request.contribution);
  fixture.Pushes();
  fixture.Decides(request.contribution, 1);
  fixture.Pulls(1);
  fixture.Adopts(1, AdoptMode::kReplace);
  CHECK(fixture.Trains().ranges == Ranges{{8, 10}});
}

TEST_CASE("With carry it trains on while the round is made, and that goes into the next push") {
  Fixture fixture;
  fixture.Starts();
  fixture.TrainsSteps(4);
  const PushRequest first = fixture.AwaitPushRequest();
  fixture.TrainsSteps(2);
  CHECK(fixture.GetActivity() == "training, while version 1 is made");
  fixture.Decides(first.contribution, 1);
  fixture.Pulls(1);
  CHECK(fixture.Idle<AdoptPulled>());  // a step is going on
  fixture.Trains();
  fixture.Adopts(1, AdoptMode::kCarry);
  fixture.Leases(40);
  fixture.TrainsSteps(4);  // a whole round after the adoption, whenever that was
  const PushRequest second = fixture.AwaitPushRequest();
  CHECK(second.contribution.base_version == 1);
  CHECK(second.consumed == Ranges{{8, 22}});
  CHECK(second.inner_steps == 7);
}

TEST_CASE("Carrying on is bounded") {
  Fixture fixture;
  fixture.Starts();
  fixture.TrainsSteps(4);
  fixture.AwaitPushRequest();
  fixture.Leases(40);
  fixture.TrainsSteps(kMaxCarriedRounds * 4);
  CHECK(fixture.Idle<TrainStep>());
  CHECK(fixture.Idle<CaptureDelta>());
  CHECK(fixture.GetActivity() == "waiting for version 1 to be decided");
}

TEST_CASE("A rejection keeps what was trained since; warming up again trains it again") {
  for (const bool again : {false, true}) {
    Fixture fixture;
    fixture.Starts();
    fixture.TrainsSteps(4);
    const PushRequest first = fixture.AwaitPushRequest();
    fixture.TrainsSteps(1);
    fixture.Decides(first.contribution, 1, false, again);
    fixture.Pulls(1);
    fixture.Trains();
    const AdoptPulled adopt = fixture.Wants<AdoptPulled>();
    CHECK(adopt.mode == (again ? AdoptMode::kReplace : AdoptMode::kCarry));
    CHECK(adopt.reset_moments == again);
    fixture.HandleEvent(Adopted{1});
    CHECK(fixture.Trains().ranges == (again ? Ranges{{8, 10}} : Ranges{{12, 14}}));
  }
}

TEST_CASE("A rejection without a new version: it does not push from that base again") {
  Fixture fixture;
  fixture.order.spec.outer.overlap = Overlap::kNone;
  fixture.Starts();
  fixture.TrainsSteps(4);
  const PushRequest first = fixture.AwaitPushRequest();
  fixture.Decides(first.contribution, 0, false);
  fixture.Pulls(0);
  fixture.Adopts(0, AdoptMode::kReplace);
  fixture.Leases(20);
  fixture.TrainsSteps(kMaxCarriedRounds * 4);
  CHECK(fixture.Idle<CaptureDelta>());
  CHECK(fixture.GetActivity() ==
        "waiting for version 1: the last push from version 0 was rejected");
  // Another island makes version 1: the local steps move over to it.
  fixture.order.committed_version = 1;
  fixture.Orders();
  fixture.Pulls(1);
  fixture.Adopts(1, AdoptMode::kCarry);
  CHECK(fixture.AwaitPushRequest().contribution.base_version == 1);
}

TEST_CASE("Requests are repeated until they are answered, and at once after a reconnect") {
  Fixture fixture;
  fixture.Starts();
  fixture.TrainsSteps(4);
  const PushRequest request = fixture.AwaitPushRequest();
  const LeaseRequest lease = fixture.Wants<LeaseRequest>();
  fixture.Passes(kRetryInterval);
  CHECK(fixture.Wants<PushRequest>().contribution == request.contribution);
  CHECK(fixture.Wants<LeaseRequest>().request == lease.request);
  fixture.HandleEvent(ConnectionLost{"coordinator died"});
  fixture.Passes(kWhile);
  CHECK(fixture.Idle<PushRequest>());
  ++fixture.epoch;
  fixture.Attaches();
  CHECK(fixture.Wants<PushRequest>().consumed == request.consumed);
  CHECK(fixture.Wants<LeaseRequest>().request == lease.request);
}

TEST_CASE(
    "It trains on while its pseudo-gradient is made, and requests to push it when it is there") {
  Fixture fixture;
  fixture.Starts();
  fixture.TrainsSteps(4);
  const ContributionId first = fixture.Wants<CaptureDelta>().contribution;
  CHECK(fixture.Idle<TrainStep>());  // of the parameters that are being captured
  fixture.HandleEvent(DeltaCaptured{first});
  fixture.TrainsSteps(2);
  CHECK(fixture.Idle<PushRequest>());
  SECTION("") {
    fixture.HandleEvent(DeltaReady{first});
    const PushRequest request = fixture.Wants<PushRequest>();
    CHECK(request.contribution == first);
    CHECK(request.inner_steps == 4);
  }
  SECTION("a pseudo-gradient that could not be made is captured again, with the steps made since") {
    fixture.HandleEvent(DeltaReady{first, false, "no memory"});
    CHECK(fixture.Wants<WorkerLog>().text == "no memory");
    CHECK(fixture.Idle<PushRequest>());
    fixture.Trains();  // the one under way
    CHECK(fixture.Idle<TrainStep>());
    fixture.Passes(std::chrono::seconds(6));
    const PushRequest request = fixture.AwaitPushRequest();
    CHECK(request.contribution == first);
    CHECK(request.inner_steps == 7);
    CHECK(request.consumed == Ranges{{0, 14}});
    fixture.HandleEvent(DeltaReady{first, false, "late"});  // changes nothing
    fixture.Trains();
    fixture.IsGranted(first);
    fixture.Pushes();
    fixture.Decides(first, 1);
    fixture.Pulls(1);
    fixture.Trains();
    fixture.Adopts(1, AdoptMode::kCarry);
  }
  SECTION("and with nothing, if what was trained since is no number") {
    fixture.Trains(std::nan(""));
    fixture.HandleEvent(DeltaReady{first, false, "no memory"});
    fixture.Pulls(0);
    fixture.Passes(std::chrono::seconds(6));
    fixture.Adopts(0, AdoptMode::kReplace);
    CHECK(fixture.Trains().ranges == Ranges{{0, 2}});
  }
  SECTION("and not at all, if it is of another generation") {
    ++fixture.order.generation;
    fixture.Orders();
    fixture.HandleEvent(DeltaReady{first});
    CHECK(fixture.Idle<PushRequest>());
  }
}

TEST_CASE("Without a coordinator it trains until its leases are used up") {
  Fixture fixture;
  fixture.Starts();
  fixture.HandleEvent(ConnectionLost{"gone"});
  fixture.TrainsSteps(4);
  const ContributionId contribution = fixture.Wants<CaptureDelta>().contribution;
  fixture.HandleEvent(DeltaCaptured{contribution});
  fixture.HandleEvent(DeltaReady{contribution});
  fixture.TrainsSteps(6);
  CHECK(fixture.Idle<TrainStep>());
  CHECK(fixture.GetActivity() == "waiting for the coordinator: all leased data is used");
  fixture.Passes(kWhile);
  fixture.Drop<LeaseRequest>();
  fixture.Drop<PushRequest>();
  fixture.Attaches();
  fixture.Leases(10);
  fixture.Wants<TrainStep>();
}

TEST_CASE("It requests data ahead of time, under one number until sequences come") {
  Fixture fixture;
  fixture.Attaches();
  fixture.Orders();
  fixture.Prepares();
  const LeaseRequest early = fixture.Wants<LeaseRequest>();
  CHECK(early.wanted == 2 * 8 + 6 * 2);  // two rounds and six steps
  fixture.Says(LeaseGrant{"job-1", 3, 1, early.request, {}, true});
  fixture.Passes(kRetryInterval);
  const LeaseRequest repeated = fixture.Wants<LeaseRequest>();
  CHECK(repeated.request == early.request);
  const LeaseGrant grant{"job-1", 3, 1, early.request, {{0, 20}}, false};
  fixture.Says(grant);
  fixture.Says(grant);  // a repetition gives nothing more
  fixture.Pulls(0);
  fixture.Adopts(0, AdoptMode::kReplace);
  fixture.Trains();
  fixture.Trains();
  CHECK(fixture.Idle<LeaseRequest>());
  fixture.Trains();  // taken: 6 of 20, under two rounds are left
  CHECK(fixture.Wants<LeaseRequest>().request == early.request + 1);
}

TEST_CASE("When all data is leased out it trains a smaller last batch and pushes a short round") {
  Fixture fixture;
  fixture.Attaches();
  fixture.Orders();
  fixture.Prepares();
  fixture.Pulls(0);
  fixture.Adopts(0, AdoptMode::kReplace);
  fixture.Leases(3, true);
  CHECK(fixture.Trains().ranges == Ranges{{0, 2}});
  CHECK(fixture.Trains().ranges == Ranges{{2, 3}});
  const PushRequest request = fixture.AwaitPushRequest();
  CHECK(request.inner_steps == 2);
  CHECK(request.tokens == 30);
  fixture.Decides(request.contribution, 1);
  fixture.Pulls(1);
  fixture.Adopts(1, AdoptMode::kReplace);
  CHECK(fixture.GetActivity() == "all data is leased out: waiting for the others, or for more");
  // Others make version 2, which it is to validate.
  fixture.order.committed_version = 2;
  fixture.order.validate_version = 2;
  fixture.Orders();
  fixture.Pulls(2);
  fixture.Adopts(2, AdoptMode::kReplace);
  CHECK(fixture.Wants<Validate>().version == 2);
  fixture.HandleEvent(ValidationDone{2, 1.5, 640});
  CHECK(fixture.Wants<ValidationResult>().loss == 1.5);
  fixture.Passes(kRetryInterval);
  CHECK(fixture.Wants<ValidationResult>().version == 2);
  fixture.order.validate_version = kNoVersion;
  fixture.Orders();
  fixture.Passes(kWhile);
  CHECK(fixture.Idle<ValidationResult>());
}

TEST_CASE("The first island makes the initial weights and pulls them like the others") {
  Fixture fixture;
  fixture.order.initialize = true;
  fixture.order.committed_version = kNoVersion;
  fixture.order.spec.outer.push_encoding = Encoding::kBfloat16;
  fixture.Attaches();
  fixture.Orders();
  fixture.Prepares();
  fixture.Wants<MakeInitialWeights>();
  fixture.HandleEvent(InitialWeightsMade{});
  const PushRequest request = fixture.AwaitPushRequest();
  CHECK(request.contribution.base_version == kNoVersion);
  CHECK(request.tokens == 0);
  fixture.IsGranted(request.contribution);
  const PushShards push = fixture.Wants<PushShards>();
  CHECK(push.encoding == Encoding::kFloat32);  // initial weights are never rounded
  CHECK(fixture.Idle<LeaseRequest>());         // refused before there is a version
  fixture.order.initialize = false;
  fixture.order.committed_version = 0;
  fixture.Orders();
  fixture.Wants<CancelTransfers>();
  fixture.Pulls(0);
  fixture.Adopts(0, AdoptMode::kReplace);
  fixture.Leases(20);
  fixture.Trains();
}

TEST_CASE("A residual is kept while all that was pushed is in the model, and forgotten otherwise") {
  Fixture fixture;
  fixture.order.spec.outer.push_encoding = Encoding::kInt4;
  fixture.order.spec.outer.overlap = Overlap::kNone;
  fixture.Starts();
  const auto keeps = [&](Version version, bool accepted, bool warm_up_again) {
    fixture.TrainsSteps(4);
    const CaptureDelta capture = fixture.Wants<CaptureDelta>();
    CHECK(capture.encoding == Encoding::kInt4);
    CHECK(capture.shards == fixture.order.shards);
    fixture.HandleEvent(DeltaCaptured{capture.contribution});
    fixture.HandleEvent(DeltaReady{capture.contribution});
    fixture.IsGranted(capture.contribution);
    CHECK(fixture.Wants<PushShards>().encoding == Encoding::kInt4);
    fixture.Decides(capture.contribution, version, accepted, warm_up_again);
    const StartPull pull = fixture.Wants<StartPull>();
    fixture.HandleEvent(PullDone{pull.pull, 600});
    const AdoptPulled adopt = fixture.Wants<AdoptPulled>();
    fixture.HandleEvent(Adopted{version});
    return adopt.keep_residual;
  };
  CHECK(keeps(1, true, false));
  fixture.Leases(40);
  CHECK_FALSE(keeps(2, false, false));
  CHECK(keeps(3, true, false));
  CHECK_FALSE(keeps(4, false, true));
}

TEST_CASE("An island that waits for the initial weights requests data as soon as they are there") {
  Fixture fixture;
  fixture.order.committed_version = kNoVersion;
  fixture.Attaches();
  fixture.Orders();
  fixture.Prepares();
  CHECK(fixture.GetActivity() == "waiting for the initial weights");
  CHECK(fixture.Idle<LeaseRequest>());
  fixture.order.committed_version = 0;
  fixture.Orders();
  fixture.Wants<LeaseRequest>();
}

TEST_CASE("A push that fails is tried again, one that is acknowledged is not") {
  Fixture fixture;
  fixture.Starts();
  fixture.TrainsSteps(4);
  const ContributionId c = fixture.AwaitPushRequest().contribution;
  fixture.IsGranted(c);
  CHECK(fixture.Wants<PushShards>().shards.size() == 2);
  fixture.IsGranted(c);
  CHECK(fixture.Idle<PushShards>());
  fixture.HandleEvent(PushShardDone{{"job-1", 3, 1, 5, 0, 0}, ShardPushStatus::kStaged, "", 400});
  fixture.HandleEvent(
      PushShardDone{{"job-1", 3, 1, 5, 0, 1}, ShardPushStatus::kFailed, "timeout", 0});
  fixture.Passes(kRetryInterval);
  const PushShards again = fixture.Wants<PushShards>();
  REQUIRE(again.shards.size() == 1);
  CHECK(again.shards[0].shard == 1);
  // Refused while the server was behind: the coordinator grants again.
  fixture.HandleEvent(
      PushShardDone{{"job-1", 3, 1, 5, 0, 1}, ShardPushStatus::kRefused, "fenced", 0});
  fixture.Passes(kWhile);
  CHECK(fixture.Idle<PushShards>());
  fixture.IsGranted(c);
  CHECK(fixture.Wants<PushShards>().shards.size() == 1);
}

TEST_CASE("Why a push fails is shown until it is mended, and logged when it changes") {
  Fixture fixture;
  fixture.order.spec.outer.overlap = Overlap::kNone;
  fixture.Starts();
  fixture.TrainsSteps(4);
  const ContributionId c = fixture.AwaitPushRequest().contribution;
  fixture.IsGranted(c);
  fixture.Drop<WorkerLog>();
  const auto fails = [&fixture](ShardId shard, const std::string& reason) {
    fixture.Wants<PushShards>();
    fixture.HandleEvent(
        PushShardDone{{"job-1", 3, 1, 5, 0, shard}, ShardPushStatus::kFailed, reason, 0});
    fixture.Passes(kRetryInterval);
  };
  const std::string waits = "waiting for version 1 to be decided";
  CHECK(fixture.GetActivity() == waits);
  fails(0, "shard 0 at ps1: no route to host");
  CHECK(fixture.GetActivity() == waits + ": push of shard 0 at ps1: no route to host");
  CHECK(fixture.Wants<WorkerLog>().text == "push of shard 0 at ps1: no route to host");
  // The same again, and another shard's: nothing new.
  fails(0, "shard 0 at ps1: no route to host");
  fixture.HandleEvent(PushShardDone{
      {"job-1", 3, 1, 5, 0, 1}, ShardPushStatus::kFailed, "shard 1 at ps2: no route to host", 0});
  CHECK(fixture.Idle<WorkerLog>());
  fixture.Passes(kRetryInterval);
  fails(0, "shard 0 at ps1: timeout");
  CHECK(fixture.Wants<WorkerLog>().text == "push of shard 0 at ps1: timeout");
  CHECK(fixture.GetActivity() == waits + ": push of shard 0 at ps1: timeout");
  // It is mended.
  fixture.HandleEvent(PushShardDone{{"job-1", 3, 1, 5, 0, 0}, ShardPushStatus::kStaged, "", 400});
  CHECK(fixture.GetActivity() == waits);
}

TEST_CASE("A pull that began before there was anything to push ends when something is pushed") {
  Fixture fixture;
  fixture.order.spec.outer.overlap = Overlap::kNone;
  fixture.Starts();
  fixture.order.committed_version = fixture.order.validate_version = 1;
  fixture.Orders();
  const StartPull early = fixture.Wants<StartPull>();
  fixture.TrainsSteps(4);
  const PushRequest request = fixture.AwaitPushRequest();
  CHECK(request.contribution.base_version == 0);
  fixture.HandleEvent(PullDone{early.pull, 600});
  CHECK(fixture.Idle<AdoptPulled>());  // what is being pushed would be forgotten
  fixture.Decides(request.contribution, 2);
  fixture.Pulls(2);
  fixture.Adopts(2, AdoptMode::kReplace);
}

TEST_CASE("A superseded pull starts again with the newer version") {
  Fixture fixture;
  fixture.Attaches();
  fixture.Orders();
  fixture.Prepares();
  StartPull pull = fixture.Wants<StartPull>();
  REQUIRE(pull.shards.size() == 2);
  CHECK(pull.shards[0].shard == 1);  // in the ordered order
  fixture.HandleEvent(PullFailed{pull.pull, PullFailure::kSuperseded, 1, "version 1 is here"});
  CHECK(fixture.GetActivity() == "pulling version 0: version 1 is here");
  fixture.order.committed_version = 1;
  fixture.Orders();
  pull = fixture.Wants<StartPull>();
  CHECK(pull.version == 1);
  fixture.HandleEvent(PullDone{pull.pull - 1, 600});  // of the old pull
  CHECK(fixture.Idle<AdoptPulled>());
  fixture.HandleEvent(PullFailed{pull.pull, PullFailure::kError, kNoVersion, "unreachable"});
  CHECK(fixture.Idle<StartPull>());
  fixture.Passes(kRetryInterval);
  fixture.Pulls(1);
  fixture.Adopts(1, AdoptMode::kReplace);
}

}  // namespace
}  // namespace atl::worker
