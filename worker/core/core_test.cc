#include "worker/core/core.h"

#include <catch2/catch.hpp>
#include <cmath>

#include "worker/core/story.h"

namespace atl::worker {
namespace {

using Ranges = std::vector<PositionRange>;
constexpr Duration kWhile = kRetryInterval * 2;

TEST_CASE("A worker says hello until it is welcomed, and again on every connection") {
  Story story;
  story.Happens(Connected{});
  CHECK(story.Wants<WorkerHello>().software_version == "test");
  story.Passes(kRetryInterval);
  story.Wants<WorkerHello>();
  story.Says(Welcome{});
  story.Wants<WorkerHeartbeat>();
  story.Passes(kWhile);
  CHECK(story.Idle<WorkerHello>());
  story.Happens(ConnectionLost{"reset"});
  story.Drop<WorkerHeartbeat>();
  story.Passes(kWhile);
  CHECK(story.Idle<WorkerHeartbeat>());
  story.Happens(Connected{});
  story.Wants<WorkerHello>();
}

TEST_CASE("A final refusal ends the worker, another one makes it try again") {
  Story story;
  story.Happens(Connected{});
  story.Wants<WorkerHello>();
  story.Says(Refused{"busy", false});
  CHECK(story.Doing() == "refused: busy");
  story.Passes(kRetryInterval);
  story.Wants<WorkerHello>();
  story.Says(Refused{"a newer incarnation is attached", true});
  CHECK(story.Wants<Stop>().exit_code == 1);
}

TEST_CASE("It prepares a job once and answers every repetition") {
  Story story;
  story.Attaches();
  story.Says(PrepareJob{"job-1", story.order.spec});
  story.Says(PrepareJob{"job-1", story.order.spec});
  story.Prepares();
  CHECK(story.Idle<Prepare>());
  CHECK(story.Wants<JobPrepared>().facts.layers == story.order.layers);
  story.Says(PrepareJob{"job-1", story.order.spec});
  story.Wants<JobPrepared>();

  story.Says(PrepareJob{"job-2", story.order.spec});
  story.Wants<Prepare>();
  story.Happens(PrepareFailed{"job-2", "data.path: no such file"});
  CHECK(story.Wants<JobRefused>().reason == "data.path: no such file");
}

TEST_CASE("A round: train, request, push, get the outcome, pull, adopt") {
  Story story;
  story.order.spec.outer.overlap = Overlap::kNone;
  story.Starts();
  CHECK(story.Trains().ranges == Ranges{{0, 2}});
  story.TrainsSteps(3);

  const PushRequest request = story.AsksToPush();
  CHECK(request.contribution == ContributionId{3, 1, 5, 0});
  CHECK(request.inner_steps == 4);
  CHECK(request.tokens == 80);
  CHECK(request.consumed == Ranges{{0, 8}});
  CHECK(story.Idle<TrainStep>());
  CHECK(story.Doing() == "waiting for version 1 to be decided");

  story.IsGranted(request.contribution);
  story.Pushes();
  story.Decides(request.contribution, 1);
  story.Pulls(1);
  story.Adopts(1, AdoptMode::kReplace);
  CHECK(story.Trains().ranges == Ranges{{8, 10}});
}

TEST_CASE("With carry it trains on while the round is made, and that goes into the next push") {
  Story story;
  story.Starts();
  story.TrainsSteps(4);
  const PushRequest first = story.AsksToPush();
  story.TrainsSteps(2);
  CHECK(story.Doing() == "training, while version 1 is made");
  story.Decides(first.contribution, 1);
  story.Pulls(1);
  CHECK(story.Idle<AdoptPulled>());  // a step is going on
  story.Trains();
  story.Adopts(1, AdoptMode::kCarry);
  story.Leases(40);
  story.TrainsSteps(4);  // a whole round after the adoption, whenever that was
  const PushRequest second = story.AsksToPush();
  CHECK(second.contribution.base_version == 1);
  CHECK(second.consumed == Ranges{{8, 22}});
  CHECK(second.inner_steps == 7);
}

TEST_CASE("Carrying on is bounded") {
  Story story;
  story.Starts();
  story.TrainsSteps(4);
  story.AsksToPush();
  story.Leases(40);
  story.TrainsSteps(kMaxCarriedRounds * 4);
  CHECK(story.Idle<TrainStep>());
  CHECK(story.Idle<CaptureDelta>());
  CHECK(story.Doing() == "waiting for version 1 to be decided");
}

TEST_CASE("A rejection keeps what was trained since; warming up again trains it again") {
  for (const bool again : {false, true}) {
    Story story;
    story.Starts();
    story.TrainsSteps(4);
    const PushRequest first = story.AsksToPush();
    story.TrainsSteps(1);
    story.Decides(first.contribution, 1, false, again);
    story.Pulls(1);
    story.Trains();
    const AdoptPulled adopt = story.Wants<AdoptPulled>();
    CHECK(adopt.mode == (again ? AdoptMode::kReplace : AdoptMode::kCarry));
    CHECK(adopt.reset_moments == again);
    story.Happens(Adopted{1});
    CHECK(story.Trains().ranges == (again ? Ranges{{8, 10}} : Ranges{{12, 14}}));
  }
}

TEST_CASE("A rejection without a new version: it does not push from that base again") {
  Story story;
  story.order.spec.outer.overlap = Overlap::kNone;
  story.Starts();
  story.TrainsSteps(4);
  const PushRequest first = story.AsksToPush();
  story.Decides(first.contribution, 0, false);
  story.Pulls(0);
  story.Adopts(0, AdoptMode::kReplace);
  story.Leases(20);
  story.TrainsSteps(kMaxCarriedRounds * 4);
  CHECK(story.Idle<CaptureDelta>());
  CHECK(story.Doing() == "waiting for version 1: the last push from version 0 was rejected");
  // Another island makes version 1: the local steps move over to it.
  story.order.committed_version = 1;
  story.Orders();
  story.Pulls(1);
  story.Adopts(1, AdoptMode::kCarry);
  CHECK(story.AsksToPush().contribution.base_version == 1);
}

TEST_CASE("Requests are repeated until they are answered, and at once after a reconnect") {
  Story story;
  story.Starts();
  story.TrainsSteps(4);
  const PushRequest request = story.AsksToPush();
  const LeaseRequest lease = story.Wants<LeaseRequest>();
  story.Passes(kRetryInterval);
  CHECK(story.Wants<PushRequest>().contribution == request.contribution);
  CHECK(story.Wants<LeaseRequest>().request == lease.request);
  story.Happens(ConnectionLost{"coordinator died"});
  story.Passes(kWhile);
  CHECK(story.Idle<PushRequest>());
  ++story.epoch;
  story.Attaches();
  CHECK(story.Wants<PushRequest>().consumed == request.consumed);
  CHECK(story.Wants<LeaseRequest>().request == lease.request);
}

TEST_CASE(
    "It trains on while its pseudo-gradient is made, and requests to push it when it is there") {
  Story story;
  story.Starts();
  story.TrainsSteps(4);
  const ContributionId first = story.Wants<CaptureDelta>().contribution;
  CHECK(story.Idle<TrainStep>());  // of the parameters that are being captured
  story.Happens(DeltaCaptured{first});
  story.TrainsSteps(2);
  CHECK(story.Idle<PushRequest>());
  SECTION("") {
    story.Happens(DeltaReady{first});
    const PushRequest request = story.Wants<PushRequest>();
    CHECK(request.contribution == first);
    CHECK(request.inner_steps == 4);
  }
  SECTION("a pseudo-gradient that could not be made is captured again, with the steps made since") {
    story.Happens(DeltaReady{first, false, "no memory"});
    CHECK(story.Wants<WorkerLog>().text == "no memory");
    CHECK(story.Idle<PushRequest>());
    story.Trains();  // the one under way
    CHECK(story.Idle<TrainStep>());
    story.Passes(std::chrono::seconds(6));
    const PushRequest request = story.AsksToPush();
    CHECK(request.contribution == first);
    CHECK(request.inner_steps == 7);
    CHECK(request.consumed == Ranges{{0, 14}});
    story.Happens(DeltaReady{first, false, "late"});  // changes nothing
    story.Trains();
    story.IsGranted(first);
    story.Pushes();
    story.Decides(first, 1);
    story.Pulls(1);
    story.Trains();
    story.Adopts(1, AdoptMode::kCarry);
  }
  SECTION("and with nothing, if what was trained since is no number") {
    story.Trains(std::nan(""));
    story.Happens(DeltaReady{first, false, "no memory"});
    story.Pulls(0);
    story.Passes(std::chrono::seconds(6));
    story.Adopts(0, AdoptMode::kReplace);
    CHECK(story.Trains().ranges == Ranges{{0, 2}});
  }
  SECTION("and not at all, if it is of another generation") {
    ++story.order.generation;
    story.Orders();
    story.Happens(DeltaReady{first});
    CHECK(story.Idle<PushRequest>());
  }
}

TEST_CASE("Without a coordinator it trains until its leases are used up") {
  Story story;
  story.Starts();
  story.Happens(ConnectionLost{"gone"});
  story.TrainsSteps(4);
  const ContributionId contribution = story.Wants<CaptureDelta>().contribution;
  story.Happens(DeltaCaptured{contribution});
  story.Happens(DeltaReady{contribution});
  story.TrainsSteps(6);
  CHECK(story.Idle<TrainStep>());
  CHECK(story.Doing() == "waiting for the coordinator: all leased data is used");
  story.Passes(kWhile);
  story.Drop<LeaseRequest>();
  story.Drop<PushRequest>();
  story.Attaches();
  story.Leases(10);
  story.Wants<TrainStep>();
}

TEST_CASE("It requests data ahead of time, under one number until sequences come") {
  Story story;
  story.Attaches();
  story.Orders();
  story.Prepares();
  const LeaseRequest early = story.Wants<LeaseRequest>();
  CHECK(early.wanted == 2 * 8 + 4);  // two rounds and a half
  story.Says(LeaseGrant{"job-1", 3, 1, early.request, {}, true});
  story.Passes(kRetryInterval);
  const LeaseRequest repeated = story.Wants<LeaseRequest>();
  CHECK(repeated.request == early.request);
  const LeaseGrant grant{"job-1", 3, 1, early.request, {{0, 20}}, false};
  story.Says(grant);
  story.Says(grant);  // a repetition gives nothing more
  story.Pulls(0);
  story.Adopts(0, AdoptMode::kReplace);
  story.Trains();
  story.Trains();
  CHECK(story.Idle<LeaseRequest>());
  story.Trains();  // taken: 6 of 20, under two rounds are left
  CHECK(story.Wants<LeaseRequest>().request == early.request + 1);
}

TEST_CASE("When all data is leased out it trains a smaller last batch and pushes a short round") {
  Story story;
  story.Attaches();
  story.Orders();
  story.Prepares();
  story.Pulls(0);
  story.Adopts(0, AdoptMode::kReplace);
  story.Leases(3, true);
  CHECK(story.Trains().ranges == Ranges{{0, 2}});
  CHECK(story.Trains().ranges == Ranges{{2, 3}});
  const PushRequest request = story.AsksToPush();
  CHECK(request.inner_steps == 2);
  CHECK(request.tokens == 30);
  story.Decides(request.contribution, 1);
  story.Pulls(1);
  story.Adopts(1, AdoptMode::kReplace);
  CHECK(story.Doing() == "all data is leased out: waiting for the others, or for more");
  // Others make version 2, which it is to validate.
  story.order.committed_version = 2;
  story.order.validate_version = 2;
  story.Orders();
  story.Pulls(2);
  story.Adopts(2, AdoptMode::kReplace);
  CHECK(story.Wants<Validate>().version == 2);
  story.Happens(ValidationDone{2, 1.5, 640});
  CHECK(story.Wants<ValidationResult>().loss == 1.5);
  story.Passes(kRetryInterval);
  CHECK(story.Wants<ValidationResult>().version == 2);
  story.order.validate_version = kNoVersion;
  story.Orders();
  story.Passes(kWhile);
  CHECK(story.Idle<ValidationResult>());
}

TEST_CASE("The first island makes the initial weights and pulls them like the others") {
  Story story;
  story.order.initialize = true;
  story.order.committed_version = kNoVersion;
  story.order.spec.outer.push_encoding = Encoding::kBfloat16;
  story.Attaches();
  story.Orders();
  story.Prepares();
  story.Wants<MakeInitialWeights>();
  story.Happens(InitialWeightsMade{});
  const PushRequest request = story.AsksToPush();
  CHECK(request.contribution.base_version == kNoVersion);
  CHECK(request.tokens == 0);
  story.IsGranted(request.contribution);
  const PushShards push = story.Wants<PushShards>();
  CHECK(push.encoding == Encoding::kFloat32);  // initial weights are never rounded
  CHECK(story.Idle<LeaseRequest>());           // refused before there is a version
  story.order.initialize = false;
  story.order.committed_version = 0;
  story.Orders();
  story.Wants<CancelTransfers>();
  story.Pulls(0);
  story.Adopts(0, AdoptMode::kReplace);
  story.Leases(20);
  story.Trains();
}

TEST_CASE("A residual is kept while all that was pushed is in the model, and forgotten otherwise") {
  Story story;
  story.order.spec.outer.push_encoding = Encoding::kInt4;
  story.order.spec.outer.overlap = Overlap::kNone;
  story.Starts();
  const auto keeps = [&](Version version, bool accepted, bool warm_up_again) {
    story.TrainsSteps(4);
    const CaptureDelta capture = story.Wants<CaptureDelta>();
    CHECK(capture.encoding == Encoding::kInt4);
    CHECK(capture.shards == story.order.shards);
    story.Happens(DeltaCaptured{capture.contribution});
    story.Happens(DeltaReady{capture.contribution});
    story.IsGranted(capture.contribution);
    CHECK(story.Wants<PushShards>().encoding == Encoding::kInt4);
    story.Decides(capture.contribution, version, accepted, warm_up_again);
    const StartPull pull = story.Wants<StartPull>();
    story.Happens(PullDone{pull.pull, 600});
    const AdoptPulled adopt = story.Wants<AdoptPulled>();
    story.Happens(Adopted{version});
    return adopt.keep_residual;
  };
  CHECK(keeps(1, true, false));
  story.Leases(40);
  CHECK_FALSE(keeps(2, false, false));
  CHECK(keeps(3, true, false));
  CHECK_FALSE(keeps(4, false, true));
}

TEST_CASE("An island that waits for the initial weights requests data as soon as they are there") {
  Story story;
  story.order.committed_version = kNoVersion;
  story.Attaches();
  story.Orders();
  story.Prepares();
  CHECK(story.Doing() == "waiting for the initial weights");
  CHECK(story.Idle<LeaseRequest>());
  story.order.committed_version = 0;
  story.Orders();
  story.Wants<LeaseRequest>();
}

TEST_CASE("A push that fails is tried again, one that is acknowledged is not") {
  Story story;
  story.Starts();
  story.TrainsSteps(4);
  const ContributionId c = story.AsksToPush().contribution;
  story.IsGranted(c);
  CHECK(story.Wants<PushShards>().shards.size() == 2);
  story.IsGranted(c);
  CHECK(story.Idle<PushShards>());
  story.Happens(PushShardDone{{"job-1", 3, 1, 5, 0, 0}, PushStatus::kStaged, "", 400});
  story.Happens(PushShardDone{{"job-1", 3, 1, 5, 0, 1}, PushStatus::kFailed, "timeout", 0});
  story.Passes(kRetryInterval);
  const PushShards again = story.Wants<PushShards>();
  REQUIRE(again.shards.size() == 1);
  CHECK(again.shards[0].shard == 1);
  // Refused while the server was behind: the coordinator grants again.
  story.Happens(PushShardDone{{"job-1", 3, 1, 5, 0, 1}, PushStatus::kRefused, "fenced", 0});
  story.Passes(kWhile);
  CHECK(story.Idle<PushShards>());
  story.IsGranted(c);
  CHECK(story.Wants<PushShards>().shards.size() == 1);
}

TEST_CASE("Why a push fails is shown until it is mended, and logged when it changes") {
  Story story;
  story.order.spec.outer.overlap = Overlap::kNone;
  story.Starts();
  story.TrainsSteps(4);
  const ContributionId c = story.AsksToPush().contribution;
  story.IsGranted(c);
  story.Drop<WorkerLog>();
  const auto fails = [&story](ShardId shard, const std::string& reason) {
    story.Wants<PushShards>();
    story.Happens(PushShardDone{{"job-1", 3, 1, 5, 0, shard}, PushStatus::kFailed, reason, 0});
    story.Passes(kRetryInterval);
  };
  const std::string waits = "waiting for version 1 to be decided";
  CHECK(story.Doing() == waits);
  fails(0, "shard 0 at ps1: no route to host");
  CHECK(story.Doing() == waits + ": push of shard 0 at ps1: no route to host");
  CHECK(story.Wants<WorkerLog>().text == "push of shard 0 at ps1: no route to host");
  // The same again, and another shard's: nothing new.
  fails(0, "shard 0 at ps1: no route to host");
  story.Happens(PushShardDone{
      {"job-1", 3, 1, 5, 0, 1}, PushStatus::kFailed, "shard 1 at ps2: no route to host", 0});
  CHECK(story.Idle<WorkerLog>());
  story.Passes(kRetryInterval);
  fails(0, "shard 0 at ps1: timeout");
  CHECK(story.Wants<WorkerLog>().text == "push of shard 0 at ps1: timeout");
  CHECK(story.Doing() == waits + ": push of shard 0 at ps1: timeout");
  // It is mended.
  story.Happens(PushShardDone{{"job-1", 3, 1, 5, 0, 0}, PushStatus::kStaged, "", 400});
  CHECK(story.Doing() == waits);
}

TEST_CASE("A pull that began before there was anything to push ends when something is pushed") {
  Story story;
  story.order.spec.outer.overlap = Overlap::kNone;
  story.Starts();
  story.order.committed_version = story.order.validate_version = 1;
  story.Orders();
  const StartPull early = story.Wants<StartPull>();
  story.TrainsSteps(4);
  const PushRequest request = story.AsksToPush();
  CHECK(request.contribution.base_version == 0);
  story.Happens(PullDone{early.pull, 600});
  CHECK(story.Idle<AdoptPulled>());  // what is being pushed would be forgotten
  story.Decides(request.contribution, 2);
  story.Pulls(2);
  story.Adopts(2, AdoptMode::kReplace);
}

TEST_CASE("A superseded pull starts again with the newer version") {
  Story story;
  story.Attaches();
  story.Orders();
  story.Prepares();
  StartPull pull = story.Wants<StartPull>();
  REQUIRE(pull.shards.size() == 2);
  CHECK(pull.shards[0].shard == 1);  // in the ordered order
  story.Happens(PullFailed{pull.pull, PullFailure::kSuperseded, 1, "version 1 is here"});
  CHECK(story.Doing() == "pulling version 0: version 1 is here");
  story.order.committed_version = 1;
  story.Orders();
  pull = story.Wants<StartPull>();
  CHECK(pull.version == 1);
  story.Happens(PullDone{pull.pull - 1, 600});  // of the old pull
  CHECK(story.Idle<AdoptPulled>());
  story.Happens(PullFailed{pull.pull, PullFailure::kError, kNoVersion, "unreachable"});
  CHECK(story.Idle<StartPull>());
  story.Passes(kRetryInterval);
  story.Pulls(1);
  story.Adopts(1, AdoptMode::kReplace);
}

}  // namespace
}  // namespace atl::worker
