// Who leads an island of several workers: leaders that hand over, end, or belong to an older plan.

#include <atomic>
#include <catch2/catch.hpp>
#include <cmath>
#include <latch>
#include <thread>

#include "tests/island/group_fixture.h"

namespace atl::worker {
namespace {

LayerBuffers ReadOuter(TestWorker& worker, OuterKind kind) {
  LayerBuffers all;
  for (size_t l = 0; l < worker.layers.size(); ++l) {
    all.emplace_back(static_cast<size_t>(worker.layers[l].elements));
    const absl::Status read =
        worker.member->outer_exchange().ReadLayer(kind, static_cast<int32_t>(l), all.back());
    REQUIRE(read.ToString() == "OK");
  }
  return all;
}

// The pseudo-gradient of the parameters as they are.
CaptureDelta Capture(TestWorker& leader, Encoding encoding, Version base = 4) {
  CaptureDelta capture{ContributionId{0, 1, 9, base}, encoding, {}};
  for (size_t l = 0; l < leader.layers.size() && IsQuantized(encoding); ++l) {
    const auto layer = static_cast<int32_t>(l);
    capture.shards.push_back({layer, layer, 0, leader.layers[l].elements});
  }
  REQUIRE(leader.trainer->CaptureDelta(capture).ToString() == "OK");
  REQUIRE(leader.trainer->events.AwaitReady().reason.empty());
  return capture;
}

TEST_CASE("a leader hands over: the next one goes on at the same step, with what it knew") {
  World world;
  const Encoding encoding = GENERATE(Encoding::kFloat32, Encoding::kInt4);
  world.spec.outer.push_encoding = encoding;
  TestGroup group(world, 3);
  group.Take(Pipeline("three stages", {2, 2, 2}, 3), {"w1", "w2", "w3"});
  TestWorker& before = group["w1"];
  REQUIRE(before.trainer->InitialWeights().ok());
  SingleDeviceTrainer alone(world);
  group.Pulled(
      [](int32_t layer, int64_t i) { return 1e-3f * static_cast<float>((i + layer) % 13); });
  REQUIRE(before.trainer->AdoptPulled({4, AdoptMode::kReplace}).ToString() == "OK");
  const State theta = before.Read();
  for (int l = 0; l < static_cast<int>(before.layers.size()); ++l) {
    REQUIRE(alone.trainer->SetParameters(l, theta[static_cast<size_t>(3 * l)]).ok());
  }
  for (int64_t step = 0; step < 2; ++step) {
    REQUIRE(before.Step(step) == Approx(alone.Step(step)).epsilon(1e-5));
  }
  const CaptureDelta capture = Capture(before, encoding);
  const LayerBuffers base = ReadOuter(before, OuterKind::kBase);
  const LayerBuffers delta = ReadOuter(before, OuterKind::kDelta);
  std::map<ShardId, std::vector<std::byte>> encoded;
  for (const char* name : {"w1", "w2", "w3"}) {
    const auto& own = group[name].member->outer_exchange().state()->delta()->encoded;
    encoded.insert(own.begin(), own.end());
  }
  CHECK(encoded.size() == capture.shards.size());
  const StateStamp since = before.trainer->outer()->tag().since;
  CHECK(since != StateStamp());

  Leadership kept, known;
  kept.generation = 1;
  kept.adopted = true;
  kept.base_version = 4;
  kept.local = {2, 256, 640.5, {{0, 16}}};
  kept.in_flight = capture.contribution;
  kept.leased = {{16, 40}, {80, 88}};
  // Two stages, by w2 and w3; w1 is a source of what it holds.
  const IslandPlan plan = group.PlanFor(Pipeline("two stages", {3, 3}, 2), {"w2", "w3", "w1"});
  const auto taken = group.RunHandover("w1", kept, plan, &known);
  INFO(taken.status().ToString());
  REQUIRE(taken.ok());
  REQUIRE(taken->kept);
  REQUIRE(!taken->step_taken);
  REQUIRE(known == kept);
  TestWorker& successor = group["w2"];
  REQUIRE(successor.trainer->outer()->tag() == OuterTag{4, capture.contribution, since});
  REQUIRE(ReadOuter(successor, OuterKind::kBase) == base);
  REQUIRE(ReadOuter(successor, OuterKind::kDelta) == delta);
  for (const char* name : {"w2", "w3"}) {
    for (const auto& [shard, bytes] :
         group[name].member->outer_exchange().state()->delta()->encoded) {
      CHECK(bytes == encoded.at(shard));
    }
  }
  REQUIRE(successor.trainer->optimizer_steps() == 2);
  group.Kill("w1");
  const auto alone_now = group.Order(group.PlanFor(Pipeline("two", {3, 3}, 2), {"w2", "w3"}));
  REQUIRE(alone_now.ok());
  CHECK(alone_now->kept);
  REQUIRE(ReadOuter(successor, OuterKind::kBase) == base);
  for (int64_t step = 2; step < 4; ++step) {
    REQUIRE(successor.Step(step) == Approx(alone.Step(step)).epsilon(1e-5));
  }
}

TEST_CASE(
    "of what a dead member alone kept theta_base is lost, and it is said so; a copy is enough") {
  World world;
  // Layouts of the optimizer's state, and with peers.
  const auto [copies, peers] = GENERATE(table<int, int>({{1, 0}, {2, 0}, {1, 1}}));
  world.spec.checkpoint.peer_copies = peers;
  TestGroup group(world, 2);
  IslandLayout layout = Replicas("owners", {4, 4}, 2);
  layout.optimizer_copies = copies;
  group.Take(layout, {"w1", "w2"});
  TestWorker& leader = group["w1"];
  REQUIRE(leader.trainer->InitialWeights().ok());
  const auto values = [](int32_t layer, int64_t i) {
    return 1e-3f * static_cast<float>((i + layer) % 13);
  };
  group.Pulled(values);
  REQUIRE(leader.trainer->AdoptPulled({0, AdoptMode::kReplace}).ToString() == "OK");
  leader.Step(0);
  leader.Drain();
  group.Kill("w2");
  const auto taken = group.Order(group.PlanFor(Replicas("alone", {8}, 1), {"w1"}));
  INFO(taken.status().ToString());
  REQUIRE(taken.ok());
  CHECK(taken->kept == (copies == 2));
  if (copies == 1 && peers == 0) {
    CHECK(leader.trainer->outer()->tag() == OuterTag());
    return;
  }
  for (size_t l = 0; l < leader.layers.size(); ++l) {
    std::vector<float> base(static_cast<size_t>(leader.layers[l].elements));
    REQUIRE(leader.member->outer_exchange()
                .ReadLayer(OuterKind::kBase, static_cast<int32_t>(l), base)
                .ok());
    for (size_t i = 0; i < base.size(); ++i) {
      REQUIRE(base[i] == values(static_cast<int32_t>(l), static_cast<int64_t>(i)));
    }
  }
}

TEST_CASE("who has led nothing hands nothing over, and says so") {
  const World world;
  TestGroup group(world, 2);
  group.Take(Pipeline("two stages", {3, 3}, 2), {"w1", "w2"});
  const IslandPlan plan = group.PlanFor(Pipeline("turned", {3, 3}, 2), {"w2", "w1"});
  Leadership kept, taken_over;
  kept.generation = 7;  // of another incarnation of the island
  const auto taken = group.RunHandover("w1", kept, plan, &taken_over);
  REQUIRE(Says(taken.status().message(), "it has not led this island in this generation"));
}

TEST_CASE("who serves a member no more is not called any more") {
  const World world;
  TestGroup group(world, 2);
  group.Take(Pipeline("two stages", {3, 3}, 2), {"w1", "w2"});
  TestWorker& leader = group["w1"];
  std::latch called(1), goes_on(1);
  std::atomic<bool> done = false;
  group["w2"].member->SetHooks({.serve = [&](const NodeId&, GroupFrame) {
    called.count_down();
    goes_on.wait();
    done = true;
  }});
  std::thread requester([&] { (void)leader.trainer->InitialWeights(); });
  called.wait();
  goes_on.count_down();
  group["w2"].member->SetHooks({});
  REQUIRE(done);
  leader.trainer->Interrupt("no answer");
  requester.join();
}

TEST_CASE("an interrupt ends setting up a plan whose members do not come") {
  const World world;
  TestGroup group(world, 2);
  const IslandPlan plan = group.PlanFor(Pipeline("two stages", {3, 3}, 2), {"w1", "w2"});
  TestWorker& leader = group["w1"];
  std::atomic<bool> ended = false;
  absl::Status status;
  std::thread sets_up([&] {
    status = leader.trainer->Configure(kJob, 1, plan).status();
    ended = true;
  });
  while (!ended) {  // begun or not
    leader.trainer->Interrupt("another plan is there");
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  sets_up.join();
  CHECK((status.message() == "interrupted" || status.message() == "another plan is there"));
  REQUIRE(group.Order(plan).ok());
}

TEST_CASE("a leader of an older plan is refused with a reason") {
  const World world;
  TestGroup group(world, 3);
  const IslandPlan old = group.PlanFor(Pipeline("old", {3, 3}, 2), {"w1", "w2"});
  const IslandPlan next = group.PlanFor(Pipeline("new", {3, 3}, 2), {"w3", "w2"});
  REQUIRE(group.Order(next, 2).ok());
  const auto taken = group["w1"].trainer->Configure(kJob, 1, old);
  REQUIRE(Says(taken.status().message(), "w2: it refuses us: generation 1, plan 1 is over"));
  REQUIRE(group["w3"].trainer->InitialWeights().ok());
  group["w3"].Step(0);
  REQUIRE(Says(group["w2"].activity(), "following w3 in plan 2"));
}

}  // namespace
}  // namespace atl::worker
