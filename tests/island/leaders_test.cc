// Who leads an island of several workers: leaders that hand over, end, or belong to an older plan.

#include <atomic>
#include <catch2/catch.hpp>
#include <latch>
#include <thread>

#include "tests/island/group_story.h"

namespace atl::worker {
namespace {

TEST_CASE("a leader hands over: the next one goes on at the same step, with what it knew") {
  const World world;
  TestGroup group(world, 3);
  group.Take(Pipeline("three stages", {2, 2, 2}, 3), {"w1", "w2", "w3"});
  TestWorker& before = group["w1"];
  REQUIRE(before.trainer->InitialWeights().ok());
  Alone alone(world);
  for (int64_t step = 0; step < 2; ++step) {
    REQUIRE(before.Step(step) == Approx(alone.Step(step)).epsilon(1e-5));
  }
  Inheritance kept;
  kept.leadership.generation = 1;
  kept.leadership.adopted = kept.base_set = kept.captured = true;
  kept.leadership.local = {2, 256, 640.5, {{0, 16}}};
  kept.leadership.in_flight = ContributionId{0, 1, 9, 4};
  kept.leadership.leased = {{16, 40}, {80, 88}};
  Inheritance taken_over;
  for (Inheritance* both : {&kept, &taken_over}) {
    both->base = std::make_shared<LayerBuffers>();
    both->delta = std::make_shared<Delta>();
    both->residual = std::make_shared<LayerBuffers>();
    both->delta->encoding = Encoding::kInt4;
    both->delta->encoded = {{0, std::vector<std::byte>(5)}, {3, std::vector<std::byte>(2)}};
  }
  kept.delta->encoded[0][4] = std::byte{0x7f};
  kept.delta->encoded[3][1] = std::byte{0xff};
  for (const LayerSize& layer : before.layers) {
    const auto size = static_cast<size_t>(layer.elements);
    kept.base->emplace_back(size, static_cast<float>(size));
    kept.delta->values.emplace_back(size, -1.5f);
    kept.residual->emplace_back(size, 1e-4f * static_cast<float>(size));
    for (LayerBuffers* buffers :
         {taken_over.base.get(), &taken_over.delta->values, taken_over.residual.get()}) {
      buffers->emplace_back(size);
    }
  }
  // Two stages, by w2 and w3; w1 lends what it holds.
  const IslandPlan plan = group.PlanFor(Pipeline("two stages", {3, 3}, 2), {"w2", "w3", "w1"});
  const auto taken = group.HandOver("w1", kept, plan, &taken_over);
  INFO(taken.status().ToString());
  REQUIRE(taken.ok());
  REQUIRE(taken->kept);
  REQUIRE(!taken->step_taken);
  REQUIRE(taken_over.leadership == kept.leadership);
  REQUIRE(*taken_over.base == *kept.base);
  REQUIRE(taken_over.delta->values == kept.delta->values);
  REQUIRE(taken_over.delta->encoded == kept.delta->encoded);
  REQUIRE(*taken_over.residual == *kept.residual);
  TestWorker& heir = group["w2"];
  REQUIRE(heir.trainer->optimizer_steps() == 2);
  group.Kill("w1");
  const auto alone_now = group.Order(group.PlanFor(Pipeline("two", {3, 3}, 2), {"w2", "w3"}));
  REQUIRE(alone_now.ok());
  for (int64_t step = 2; step < 4; ++step) {
    REQUIRE(heir.Step(step) == Approx(alone.Step(step)).epsilon(1e-5));
  }
}

TEST_CASE("who has led nothing hands nothing over, and says so") {
  const World world;
  TestGroup group(world, 2);
  group.Take(Pipeline("two stages", {3, 3}, 2), {"w1", "w2"});
  const IslandPlan plan = group.PlanFor(Pipeline("turned", {3, 3}, 2), {"w2", "w1"});
  Inheritance kept, taken_over;
  kept.leadership.generation = 7;  // of another life of the island
  const auto taken = group.HandOver("w1", kept, plan, &taken_over);
  REQUIRE(Says(taken.status().message(), "it has not led this island in this generation"));
}

TEST_CASE("who serves a member no more is not called any more") {
  const World world;
  TestGroup group(world, 2);
  group.Take(Pipeline("two stages", {3, 3}, 2), {"w1", "w2"});
  TestWorker& leader = group["w1"];
  std::latch called(1), goes_on(1);
  std::atomic<bool> done = false;
  group["w2"].member->SetHooks({.serve = [&](const NodeId&, v1::GroupFrame) {
    called.count_down();
    goes_on.wait();
    done = true;
  }});
  std::thread asks([&] { (void)leader.trainer->InitialWeights(); });
  called.wait();
  goes_on.count_down();
  group["w2"].member->SetHooks({});
  REQUIRE(done);
  leader.trainer->Interrupt("nobody answers");
  asks.join();
}

TEST_CASE("an interrupt ends setting up a plan whose members do not come") {
  const World world;
  TestGroup group(world, 2);
  const IslandPlan plan = group.PlanFor(Pipeline("two stages", {3, 3}, 2), {"w1", "w2"});
  TestWorker& leader = group["w1"];
  leader.trainer->Interrupt("another plan is there");
  REQUIRE(absl::IsAborted(leader.trainer->Configure(kJob, 1, plan).status()));
  leader.trainer->ForgetInterrupts();
  REQUIRE(group.Order(plan).ok());
}

TEST_CASE("a leader of an older plan is refused, and told why") {
  const World world;
  TestGroup group(world, 3);
  const IslandPlan old = group.PlanFor(Pipeline("old", {3, 3}, 2), {"w1", "w2"});
  const IslandPlan next = group.PlanFor(Pipeline("new", {3, 3}, 2), {"w3", "w2"});
  REQUIRE(group.Order(next, 2).ok());
  const auto taken = group["w1"].trainer->Configure(kJob, 1, old);
  REQUIRE(Says(taken.status().message(), "w2: it refuses us: generation 1, plan 1 is over"));
  REQUIRE(group["w3"].trainer->InitialWeights().ok());
  group["w3"].Step(0);
  REQUIRE(Says(group["w2"].doing(), "following w3 in plan 2"));
}

}  // namespace
}  // namespace atl::worker
