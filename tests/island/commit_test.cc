// The end of a step, where it is committed: islands whose members are late or fail there.

#include <catch2/catch.hpp>
#include <thread>

#include "absl/strings/match.h"
#include "tests/island/cuts.h"

namespace atl::worker {
namespace {

using namespace std::chrono_literals;

TEST_CASE("a plan at a step's end: no member gets it while another is still taking the step") {
  const World world;
  std::mutex mutex;
  std::condition_variable changed;
  bool slow = false;
  EngineOptions options;
  options.before_vote = [&](const std::string& device, const std::string&) {
    std::unique_lock lock(mutex);
    if (device == "w3/0") changed.wait_for(lock, kCutStall, [&] { return !slow; });
    return absl::OkStatus();
  };
  const auto set_slow = [&](bool now) {
    const std::lock_guard lock(mutex);
    slow = now;
    changed.notify_all();
  };
  TestGroup group(world, 3, 1, options);
  group.Take(Pipeline("three stages", {2, 2, 2}, 3), {"w1", "w2", "w3"});
  TestWorker& leader = group["w1"];
  REQUIRE(leader.trainer->InitialWeights().ok());
  leader.Step(0);
  leader.Drain();
  set_slow(true);
  leader.Step(1);  // taken by w1 and soon by w2, whose word w3 has not read yet
  const IslandPlan plan = group.PlanFor(Pipeline("two stages", {3, 3}, 2), {"w1", "w2", "w3"});
  absl::StatusOr<Reconfigured> taken;
  std::thread orders([&] { taken = group.Order(plan, 1, /*at_step_end=*/true); });
  const Instant until = SteadyNow() + 300ms;
  bool following_plan = false;
  while (SteadyNow() < until && !following_plan) {
    following_plan = absl::StrContains(group["w2"].activity(), "plan 2");
    std::this_thread::sleep_for(1ms);
  }
  CHECK(!following_plan);
  set_slow(false);
  orders.join();
  INFO(taken.status().ToString());
  REQUIRE(taken.ok());
  INFO(taken->reason);
  REQUIRE(taken->kept);
  REQUIRE(leader.trainer->optimizer_steps() == 2);
}

TEST_CASE("a step cut short where it is committed is taken by all or by none, and none is lost") {
  const World world;
  Cuts cuts;
  TestGroup group(world, 3, 1, cuts.Options());
  std::vector<IslandLayout> layouts = {Pipeline("three stages", {2, 2, 2}, 3),
                                       Replicas("replicas", {4, 2, 2}, 3)};
  // At two sites one device gets the sums from another one.
  const int sites = GENERATE(0, 2);
  for (IslandLayout& layout : layouts) layout.sites = sites;
  group.Take(layouts[0], {"w1", "w2", "w3"});
  TestWorker& leader = group["w1"];
  REQUIRE(leader.trainer->InitialWeights().ok());
  SingleDeviceTrainer alone(world);
  int64_t step = 0, given_up = 0;
  const auto trains_on = [&] {
    REQUIRE(leader.Step(step) == Approx(alone.Step(step)).epsilon(1e-5));
    leader.Drain();
    ++step;
  };
  trains_on();
  const std::vector<std::string> devices = {"w1/0", "w2/0", "w3/0"};
  for (size_t pair = 0; pair <= 9; ++pair) {
    const std::string& device = devices[pair / 3 % 3];
    const std::string& from = devices[pair % 3];
    if (pair < 9 && device == from) continue;
    INFO(device << " fails before the commit vote of " << from);
    cuts.Cut(device, from);
    if (pair == 9) {  // all of them
      for (const std::string& each : devices) {
        for (const std::string& other : devices) cuts.Cut(each, other);
      }
    }
    const bool done = leader.trainer->Step(Batch(step), GetLearningRate(step)).ok();
    const Reconfigured taken = group.Take(layouts[pair % 2], {"w1", "w2", "w3"});
    cuts.Forget();
    INFO(taken.reason);
    REQUIRE(taken.kept);
    const int64_t steps = leader.trainer->optimizer_steps();
    REQUIRE(steps == (done || taken.step_taken ? step + 1 : step));
    given_up += steps == step;
    if (steps > step) alone.Step(step++);
    trains_on();
  }
  CHECK(given_up >= 1);  // the last one at least
}

TEST_CASE("a step whose owners have taken it counts, though its parameters did not come back") {
  CheckOwnersStepCounts(World());
}

TEST_CASE("a step that only some have taken is taken by the others, whichever of them has failed") {
  const World world;
  Cuts cuts;
  TestGroup group(world, 3, 1, cuts.Options());
  IslandLayout layout{
      .name = "pipeline and replica", .replicas = {{{3, 3}, 2, 2}, {{6}, 4, 1}}, .workers = 3};
  layout.sites = GENERATE(0, 2);
  group.Take(layout, {"w1", "w2", "w3"});
  TestWorker& leader = group["w1"];
  REQUIRE(leader.trainer->InitialWeights().ok());
  SingleDeviceTrainer alone(world);
  REQUIRE(leader.Step(0) == Approx(alone.Step(0)).epsilon(1e-5));
  leader.Drain();
  SECTION("a follower has not") {
    cuts.Cut("w2/0", "w1/0", /*later=*/true);
    REQUIRE(leader.Step(1) == Approx(alone.Step(1)).epsilon(1e-5));
    cuts.Now();
    SECTION("and all are there") {}
    SECTION("and another one dies") { group.Kill("w3"); }
  }
  SECTION("nor has the follower that holds the same layers, and the next step has begun") {
    cuts.Cut("w2/0", "w1/0", /*later=*/true);
    cuts.Cut("w3/0", "w1/0", /*later=*/true);
    REQUIRE(leader.Step(1) == Approx(alone.Step(1)).epsilon(1e-5));
    const std::jthread later([&] { cuts.Now(); });
    REQUIRE(!leader.trainer->Step(Batch(2), GetLearningRate(2)).ok());
  }
  const Reconfigured taken = group.Take(Pipeline("two stages", {2, 4}, 2), {"w1", "w2"});
  cuts.Forget();  // who was interrupted before it read that word has not met its cut
  INFO(taken.reason);
  REQUIRE(taken.kept);
  REQUIRE(leader.trainer->optimizer_steps() == 2);
  for (int64_t step = 2; step < 4; ++step) {
    REQUIRE(leader.Step(step) == Approx(alone.Step(step)).epsilon(1e-5));
  }
}

TEST_CASE(
    "a step that was taken counts once, however often the plan is set up until all is there") {
  const World world;
  Cuts cuts;
  TestGroup group(world, 2, 1, cuts.Options());
  const IslandLayout layout = Pipeline("two stages", {3, 3}, 2);
  group.Take(layout, {"w1", "w2"});
  TestWorker& leader = group["w1"];
  REQUIRE(leader.trainer->InitialWeights().ok());
  SingleDeviceTrainer alone(world);
  REQUIRE(leader.Step(0) == Approx(alone.Step(0)).epsilon(1e-5));
  leader.Drain();
  // w2 takes the step, and w1 fails before it does.
  GroupMember& other = *group["w2"].member;
  const int64_t before = other.Committed().taken.number;
  cuts.Cut("w1/0", "w2/0", /*later=*/true);
  absl::Status made;
  std::thread trains([&] { made = leader.trainer->Step(Batch(1), GetLearningRate(1)).status(); });
  const Instant until = SteadyNow() + kCutStall;
  while (other.Committed().taken.number == before && SteadyNow() < until) {
    std::this_thread::sleep_for(1ms);
  }
  cuts.Now();
  trains.join();
  cuts.Forget();
  REQUIRE(!made.ok());
  alone.Step(1);
  // At first w2 cannot set the plan up.
  IslandPlan impossible = group.PlanFor(layout, {"w1", "w2"});
  impossible.replicas[0].stages[1].devices = {"w2/7"};
  impossible.programs[1].device = "w2/7";
  REQUIRE_FALSE(group.Order(impossible).ok());
  const Reconfigured taken = group.Take(layout, {"w1", "w2"});
  INFO(taken.reason);
  REQUIRE(taken.kept);
  REQUIRE(taken.step_taken);
  REQUIRE(leader.trainer->optimizer_steps() == 2);
  REQUIRE(leader.Step(2) == Approx(alone.Step(2)).epsilon(1e-5));
}

}  // namespace
}  // namespace atl::worker
