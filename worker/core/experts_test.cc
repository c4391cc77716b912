// A mixture's island: two experts in layer a, shards 1 and 2.

#include <catch2/catch.hpp>

#include "worker/core/leases.h"
#include "worker/core/testing/fixture.h"

namespace atl::worker {
namespace {

struct Mixture : Fixture {
  explicit Mixture(int64_t expert_fragments = 1, bool adapter = false) {
    order.spec.outer.overlap = Overlap::kNone;
    order.spec.outer.expert_fragments = expert_fragments;
    if (adapter) {
      Starts();
      return;
    }
    order.layers = {{"a", 100, 0, 2, 20, 30}, {"b", 50}};
    order.shards = {{0, 0, 0, 20, "ps1", "tcp://ps1"},
                    {1, 0, 20, 30, "ps1", "tcp://ps1", "", 0},
                    {2, 0, 50, 30, "ps1", "tcp://ps1", "", 1},
                    {3, 0, 80, 20, "ps1", "tcp://ps1"},
                    {4, 1, 0, 50, "ps2", "tcp://ps2"}};
    order.pull_order = {0, 1, 2, 3, 4};
    Starts();
  }
  void TrainsOn(const std::vector<int64_t>& tokens) {
    const TrainStep step = Wants<TrainStep>();
    StepDone done{Sequences(step.ranges) * 10, 2.0, 0.1};
    done.router_losses = {1.5, 0.25};
    done.expert_tokens = tokens;
    HandleEvent(done);
  }
  std::vector<ShardId> Captures() {
    capture = Wants<CaptureDelta>();
    HandleEvent(DeltaCaptured{capture.contribution});
    HandleEvent(DeltaReady{capture.contribution});
    request = Wants<PushRequest>();
    std::vector<ShardId> shards;
    for (const ShardPlacement& shard : capture.shards) shards.push_back(shard.shard);
    return shards;
  }
  void Adopts(Version version) {
    Decides(capture.contribution, version);
    const StartPull pull = Wants<StartPull>();
    CHECK(pull.expert_fragments == order.spec.outer.expert_fragments);
    HandleEvent(PullDone{pull.pull, 100});
    HandleEvent(Adopted{Wants<AdoptPulled>().version});
  }

  CaptureDelta capture;
  PushRequest request;
};
using Ids = std::vector<ShardId>;
using Tokens = std::vector<int64_t>;

TEST_CASE("an expert that saw no token of the round is not captured") {
  Mixture island;
  for (int step = 0; step < 4; ++step) island.TrainsOn({step == 2 ? 7 : 1, 0});
  CHECK(island.Captures() == Ids{0, 1, 3, 4});
  CHECK(island.request.expert_tokens == Tokens{10, 0});
  island.Adopts(1);
  for (int step = 0; step < 4; ++step) island.TrainsOn({1, 2});
  CHECK(island.Captures().empty());  // all
  CHECK(island.request.expert_tokens == Tokens{4, 8});
}

TEST_CASE("without weights of their own all experts are pushed and nothing is said of them") {
  Mixture island;
  island.order.spec.outer.weight_experts = false;
  island.Orders();
  for (int step = 0; step < 4; ++step) island.TrainsOn({5, 0});
  CHECK(island.Captures().empty());
  CHECK(island.request.expert_tokens.empty());
}

TEST_CASE("beside an adapter experts see tokens, and nothing is said of them") {
  Mixture island(1, /*adapter=*/true);
  for (int step = 0; step < 4; ++step) island.TrainsOn({5, 0});
  CHECK(island.Captures().empty());
  CHECK(island.request.expert_tokens.empty());
}

TEST_CASE("what a skipped step has routed does not count") {
  Mixture island;
  const TrainStep step = island.Wants<TrainStep>();
  StepDone skipped{Sequences(step.ranges) * 10, 2.0, 0.1};
  skipped.skipped = true;
  skipped.expert_tokens = {0, 20};
  island.HandleEvent(skipped);
  for (int i = 0; i < 3; ++i) island.TrainsOn({5, 0});
  island.Captures();
  CHECK(island.request.expert_tokens == Tokens{15, 0});
}

TEST_CASE("an expert in turn has the tokens since its last turn") {
  Mixture island(2);
  for (int step = 0; step < 4; ++step) island.TrainsOn({3, 1});
  CHECK(island.Captures() == Ids{0, 1, 3, 4});
  island.Adopts(1);
  for (int step = 0; step < 4; ++step) island.TrainsOn({3, 1});
  CHECK(island.Captures() == Ids{0, 2, 3, 4});
  CHECK(island.request.expert_tokens == Tokens{12, 8});
  island.Adopts(2);
}

TEST_CASE("a heartbeat has the load of experts and the losses of routers") {
  Mixture island;
  for (int step = 0; step < 4; ++step) island.TrainsOn({3, 1});
  island.Captures();
  island.Drop<WorkerHeartbeat>();
  island.Passes(kHeartbeatInterval);
  const IslandProgress progress = *island.Wants<WorkerHeartbeat>().progress;
  CHECK(progress.expert_tokens == Tokens{12, 4});
  CHECK(progress.router_losses == std::vector<double>{1.5, 0.25});
}

}  // namespace
}  // namespace atl::worker
