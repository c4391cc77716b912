// Members that are killed or interrupted in a step.

#include <atomic>
#include <catch2/catch.hpp>
#include <thread>

#include "common/event_loop.h"
#include "tests/island/group_fixture.h"

namespace atl::worker {
namespace {

using namespace std::chrono_literals;

// The leader's device waits in its first B while this is shut, so that no step can end.
testing::Gate& FirstBackward() {
  static testing::Gate gate;
  return gate;
}

// B of the leader's device that have begun: their gradients have come from the stage behind it.
std::atomic<int64_t> leader_backwards = 0;

// Operations that last, so that something can happen in the middle of a step.
EngineOptions Slow() {
  EngineOptions options;
  options.message_timeout = 1h;  // no step ends by it
  options.emulation.duration = [](const std::string& device, LayerKind, PlanOpKind kind,
                                  int64_t) -> Duration {
    if (device == "w1/0" && kind == PlanOpKind::kInputGradient) {
      ++leader_backwards;
      FirstBackward().Pass();
    }
    return 2ms;
  };
  return options;
}

// Trains on another thread until the island has exchanged messages in this step, then `happens`,
// and then the step may end.
template <typename Function>
absl::Status StepWhile(TestWorker& leader, int64_t step, const Function& happens) {
  const int64_t before = leader_backwards;
  absl::Status status;
  std::atomic<bool> ended = false;
  FirstBackward().Close();
  std::thread trains([&] {
    status = leader.trainer->Step(Batch(step), GetLearningRate(step)).status();
    ended = true;
  });
  while (leader_backwards == before && !ended) std::this_thread::sleep_for(1ms);
  happens();
  FirstBackward().Open();
  trains.join();
  return status;
}

TEST_CASE("a member killed in a step: the others go on where every layer is still held") {
  const World world;
  TestGroup group(world, 3, 1, Slow());
  // w1 has the first half and w2 the second; w3 has all of it again.
  IslandLayout layout{
      .name = "pipeline and replica", .replicas = {{{3, 3}, 2, 2}, {{6}, 4, 1}}, .workers = 3};
  group.Take(layout, {"w1", "w2", "w3"});
  TestWorker& leader = group["w1"];
  REQUIRE(leader.trainer->InitialWeights().ok());
  leader.Step(0);
  const State before = leader.Read();
  const absl::Status status = StepWhile(leader, 1, [&] { group.Kill("w2"); });
  REQUIRE(Says(status.message(), "w2"));
  REQUIRE(leader.trainer->Step(Batch(1), GetLearningRate(1)).status().message() ==
          "the island is not set up");

  const Reconfigured taken = group.Take(Replicas("what is left", {4, 4}, 2), {"w1", "w3"});
  INFO(taken.reason);
  REQUIRE(taken.kept);
  REQUIRE(!taken.step_taken);
  REQUIRE((leader.Read() == before));
  SingleDeviceTrainer alone(world);
  alone.Step(0);
  for (int64_t step = 1; step < 4; ++step) {
    REQUIRE(leader.Step(step) == Approx(alone.Step(step)).epsilon(1e-5));
  }
}

TEST_CASE("a member killed in a step: what no other member holds is lost, and reported") {
  const World world;
  TestGroup group(world, 3, 1, Slow());
  group.Take(Pipeline("three stages", {2, 2, 2}, 3), {"w1", "w2", "w3"});
  TestWorker& leader = group["w1"];
  REQUIRE(leader.trainer->InitialWeights().ok());
  leader.Step(0);
  const absl::Status status = StepWhile(leader, 1, [&] { group.Kill("w3"); });
  REQUIRE(Says(status.message(), "w3"));
  const Reconfigured taken = group.Take(Pipeline("two stages", {3, 3}, 2), {"w1", "w2"});
  REQUIRE(!taken.kept);
  REQUIRE(Says(taken.reason, "no member holds layer"));
  REQUIRE(leader.trainer->optimizer_steps() == 0);
  // Sets the parameters as from a pulled version.
  REQUIRE(leader.trainer->InitialWeights().ok());
  SingleDeviceTrainer alone(world);
  for (int64_t step = 0; step < 3; ++step) {
    REQUIRE(leader.Step(step) == Approx(alone.Step(step)).epsilon(1e-5));
  }
}

// Replicas of one device each, of which so many keep each element of the optimizer's state.
IslandLayout Owners(std::vector<int32_t> sequences, int copies) {
  const auto workers = static_cast<int>(sequences.size());
  IslandLayout layout = Replicas("owners", std::move(sequences), workers);
  layout.optimizer_copies = copies;
  return layout;
}

TEST_CASE("what replicas own of the optimizer's state follows them through plans, bit for bit") {
  World world;
  world.spec.inner.optimizer =
      GENERATE(InnerOptimizer::kAdamW, InnerOptimizer::kSgd, InnerOptimizer::kMuon);
  // Muon amplifies the rounding of what a gradient has little of.
  const double tolerance = world.spec.inner.optimizer == InnerOptimizer::kMuon ? 1e-3 : 1e-5;
  TestGroup group(world, 4);
  group.Take(Owners({3, 3, 2}, 1), {"w1", "w2", "w3"});
  TestWorker& leader = group["w1"];
  REQUIRE(leader.trainer->InitialWeights().ok());
  SingleDeviceTrainer alone(world);
  int64_t step = 0;
  const auto trains = [&] {
    REQUIRE(leader.Step(step) == Approx(alone.Step(step)).epsilon(tolerance));
    ++step;
  };
  for (int i = 0; i < 3; ++i) trains();
  const std::vector<NodeId> all = {"w1", "w2", "w3", "w4"};
  for (const IslandLayout& layout :
       {Owners({2, 2, 2, 2}, 1), Owners({2, 2, 2, 2}, 2), Pipeline("stages", {2, 1, 2, 1}, 4),
        Owners({2, 2, 2, 2}, 2), Owners({3, 3, 2}, 0), Owners({4, 4}, 1), Owners({3, 3, 2}, 1)}) {
    const State before = leader.Read();
    IslandPlan plan = group.PlanFor(layout, {all.begin(), all.begin() + layout.workers});
    // A member without a part in it is a source of what it holds.
    for (size_t w = plan.members.size(); w < all.size(); ++w) {
      plan.members.push_back(group[all[w]].Address());
    }
    const auto taken = group.Order(plan);
    INFO(taken.status().ToString());
    REQUIRE(taken.ok());
    INFO(taken->reason);
    REQUIRE(taken->kept);
    REQUIRE((leader.Read() == before));
    trains();
  }
}

TEST_CASE("an owner killed in a step: nothing is lost while there is another one") {
  const World world;
  TestGroup group(world, 5, 1, Slow());
  IslandLayout layout{.name = "a pipeline and three replicas",
                      .replicas = {{{3, 3}, 2, 1}, {{6}, 2, 1}, {{6}, 2, 1}, {{6}, 2, 1}},
                      .workers = 5,
                      .optimizer_copies = 1};
  SECTION("two copies") { layout.optimizer_copies = 2; }
  SECTION("one copy") {}
  group.Take(layout, {"w1", "w2", "w3", "w4", "w5"});
  TestWorker& leader = group["w1"];
  REQUIRE(leader.trainer->InitialWeights().ok());
  leader.Step(0);
  const State before = leader.Read();
  REQUIRE(!StepWhile(leader, 1, [&] { group.Kill("w4"); }).ok());
  const Reconfigured taken = group.Take(Owners({2, 2, 2, 2}, 1), {"w1", "w2", "w3", "w5"});
  INFO(taken.reason);
  REQUIRE(taken.kept == (layout.optimizer_copies == 2));
  if (!taken.kept) {
    Says(taken.reason, "no member holds layer");
    return;
  }
  REQUIRE((leader.Read() == before));
  SingleDeviceTrainer alone(world);
  alone.Step(0);
  for (int64_t step = 1; step < 4; ++step) {
    REQUIRE(leader.Step(step) == Approx(alone.Step(step)).epsilon(1e-5));
  }
}

// Two pipelines cut unlike from w1 and w3 to w2 and w4, and one link in each direction, used in
// turn.
IslandPlan OverOneLink(TestGroup& group) {
  const IslandLayout layout{
      .name = "one line", .replicas = {{{3, 3}, 2, 2}, {{2, 4}, 4, 1}}, .workers = 4};
  IslandPlan plan = group.PlanFor(layout, {"w1", "w2", "w3", "w4"});
  for (size_t w = 0; w < plan.members.size(); ++w) plan.members[w].site = w % 2 == 0 ? "a" : "b";
  plan.link_orders = {{"a", "b", {}}, {"b", "a", {}}};
  for (int32_t m = 0; m < 4; ++m) {
    for (int32_t r = 0; r < 2; ++r) {
      if (m >= plan.replicas[r].micro_batches) continue;
      plan.link_orders[0].messages.push_back({r, 0, m, false});
      plan.link_orders[1].messages.push_back({r, 1, m, true});
    }
  }
  return plan;
}

TEST_CASE("senders that take turns on a link train as one device does") {
  const World world;
  EngineOptions options;
  for (options.fixed_chunks = 1; options.fixed_chunks <= 2; ++options.fixed_chunks) {
    SingleDeviceTrainer alone(world);
    TestGroup group(world, 4, 1, options);
    REQUIRE(group.Order(OverOneLink(group)).ok());
    TestWorker& leader = group["w1"];
    REQUIRE(leader.trainer->InitialWeights().ok());
    for (int64_t step = 0; step < 10; ++step) {
      REQUIRE(leader.Step(step) == Approx(alone.Step(step)).epsilon(1e-5));
    }
    // Replica 0 sends in chunks of a sequence where it may.
    const int64_t sent = 10 * (4 + 2 * options.fixed_chunks);
    int64_t grants = 0;
    for (const char* name : {"w1", "w2", "w3", "w4"}) grants += group[name].member->grants_used();
    REQUIRE(grants == 2 * sent);
    // A short step leaves micro-batches empty, whose turn is not waited for.
    const std::vector<PositionRange> five = {{80, 85}};
    const auto loss = leader.trainer->Step(five, 1e-3);
    REQUIRE(loss.ok());
    REQUIRE(loss->loss == Approx(alone.trainer->Step(five, 1e-3)->loss).epsilon(1e-5));
    REQUIRE(leader.trainer->Evaluate(20, 0)->loss ==
            Approx(alone.trainer->Validate(20, 0)->loss).epsilon(1e-5));
  }
}

TEST_CASE("a sender killed while it takes its turns: the others go on under the next plan") {
  const World world;
  TestGroup group(world, 4, 1, Slow());
  REQUIRE(group.Order(OverOneLink(group)).ok());
  TestWorker& leader = group["w1"];
  REQUIRE(leader.trainer->InitialWeights().ok());
  leader.Step(0);
  const absl::Status status = StepWhile(leader, 1, [&] { group.Kill("w3"); });
  REQUIRE(Says(status.message(), "w3"));
  const Reconfigured taken = group.Take(Pipeline("what is left", {3, 3}, 2), {"w1", "w2"});
  INFO(taken.reason);
  REQUIRE(taken.kept);
  SingleDeviceTrainer alone(world);
  alone.Step(0);
  for (int64_t step = 1; step < 3; ++step) {
    REQUIRE(leader.Step(step) == Approx(alone.Step(step)).epsilon(1e-5));
  }
}

TEST_CASE("an interrupted step changes nothing, and the same plan is set up again") {
  const World world;
  TestGroup group(world, 2, 1, Slow());
  const IslandLayout layout = Pipeline("two stages", {3, 3}, 2);
  const IslandPlan plan = group.PlanFor(layout, {"w1", "w2"});
  REQUIRE(group.Order(plan).ok());
  TestWorker& leader = group["w1"];
  REQUIRE(leader.trainer->InitialWeights().ok());
  leader.Step(0);
  const State before = leader.Read();
  const absl::Status status =
      StepWhile(leader, 1, [&] { leader.trainer->Interrupt("the test says so"); });
  REQUIRE(Says(status.message(), "the test says so"));
  // The follower gets the order from no other source.
  auto taken = leader.trainer->Configure(kJob, 1, plan);
  INFO(taken.status().ToString());
  REQUIRE(taken.ok());
  REQUIRE(taken->kept);
  REQUIRE((leader.Read() == before));

  // Nor when the two have lost each other.
  group["w2"].member->link().Lose("w1", "the link was cut");
  const auto lost = leader.trainer->Step(Batch(1), GetLearningRate(1));
  REQUIRE(!lost.ok());
  taken = leader.trainer->Configure(kJob, 1, plan);
  INFO(taken.status().ToString());
  REQUIRE(taken.ok());
  REQUIRE(taken->kept);
  REQUIRE((leader.Read() == before));
  SingleDeviceTrainer alone(world);
  alone.Step(0);
  REQUIRE(leader.Step(1) == Approx(alone.Step(1)).epsilon(1e-5));
}

TEST_CASE(
    "a plan at a step's end: no member is interrupted, whichever still has the last step under "
    "way") {
  const World world;
  TestGroup group(world, 3);
  group.Take(Replicas("two", {4, 4}, 2), {"w1", "w2"});
  TestWorker& leader = group["w1"];
  REQUIRE(leader.trainer->InitialWeights().ok());
  SingleDeviceTrainer alone(world);
  int64_t step = 0;
  for (const bool three : {true, false, true, false}) {
    REQUIRE(leader.Step(step) == Approx(alone.Step(step)).epsilon(1e-5));
    ++step;
    const auto taken =
        group.Order(three ? group.PlanFor(Replicas("three", {4, 2, 2}, 3), {"w1", "w2", "w3"})
                          : group.PlanFor(Replicas("two", {4, 4}, 2), {"w1", "w2", "w3"}),
                    1, /*at_step_end=*/true);
    INFO(taken.status().ToString());
    REQUIRE(taken.ok());
    REQUIRE(taken->kept);
    REQUIRE(leader.trainer->optimizer_steps() == step);
  }
}

}  // namespace
}  // namespace atl::worker
