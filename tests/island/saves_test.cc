// Saved states of an island: after the death of a worker that alone held a part of it, training
// goes on where it was, with the losses of an undisturbed run.

#include <catch2/catch.hpp>

#include "tests/island/saves_fixture.h"

namespace atl::worker {
namespace {

TEST_CASE(
    "a follower that alone held a stage dies: its state comes from copies, and no step is lost") {
  const int steps_since = GENERATE(0, 1, 3);
  SavesFixture f(2);
  f.group.Take(kTwo, {"w1", "w2"});
  REQUIRE(f.group["w1"].trainer->InitialWeights().ok());
  f.Trains("w1", 2);
  f.Save("w1");
  f.Trains("w1", steps_since);
  f.group["w1"].Drain();
  f.group.Kill("w2");
  const Reconfigured taken = f.group.Take(kOne, {"w1"});
  INFO(taken.reason);
  REQUIRE(taken.kept);
  REQUIRE(!taken.step_taken);
  REQUIRE(taken.steps_replayed == steps_since);
  REQUIRE(f.group["w1"].trainer->optimizer_steps() == 2 + steps_since);
  f.HasTheStateOfOneDevice("w1");
  f.Trains("w1", 2);
}

TEST_CASE("a worker without room for copies says so, and training goes on without them") {
  World world;
  world.saves_bytes_max = 1;
  TestGroup group(world, 2);
  group.Take(kTwo, {"w1", "w2"});
  REQUIRE(group["w1"].trainer->InitialWeights().ok());
  SingleDeviceTrainer alone{world};
  for (int step = 0; step < 3; ++step) {
    REQUIRE(group["w1"].Step(step) == Approx(alone.Step(step)).epsilon(1e-5));
    LocalCheckpoint about;
    about.job = kJob;
    REQUIRE(group["w1"].trainer->SaveState(about, kMemory).ok());
    const StateSaved outcome = group["w1"].trainer->events.AwaitSaved();
    REQUIRE(outcome.state.units.empty());
    REQUIRE(!outcome.trouble.empty());
  }
}

TEST_CASE("whichever of three stages is lost, the others go on with a new cut") {
  const NodeId dead = GENERATE("w2", "w3");
  const NodeId other = dead == "w2" ? "w3" : "w2";
  SavesFixture f(3);
  f.group.Take(kThree, {"w1", "w2", "w3"});
  REQUIRE(f.group["w1"].trainer->InitialWeights().ok());
  f.Trains("w1", 1);
  f.Save("w1");
  f.Trains("w1", 2);
  f.Save("w1");
  f.Trains("w1", 1);
  f.group["w1"].Drain();
  f.group.Kill(dead);
  const Reconfigured taken = f.group.Take(kTwo, {"w1", other});
  INFO(taken.reason);
  REQUIRE(taken.kept);
  REQUIRE(taken.steps_replayed == 1);
  f.Trains("w1", 2);
  // And once more, from copies that the new plan's members keep.
  f.Save("w1");
  f.Trains("w1", 1);
  f.group["w1"].Drain();
  f.group.Kill(other);
  REQUIRE(f.group.Take(kOne, {"w1"}).kept);
  f.Trains("w1", 1);
  f.HasTheStateOfOneDevice("w1");
}

TEST_CASE("before any copy is whole, a death loses the state, and says of which layer") {
  SavesFixture f(2);
  f.group.Take(kTwo, {"w1", "w2"});
  REQUIRE(f.group["w1"].trainer->InitialWeights().ok());
  f.Trains("w1", 2);
  f.group["w1"].Drain();
  f.group.Kill("w2");
  const Reconfigured taken = f.group.Take(kOne, {"w1"});
  REQUIRE(!taken.kept);
  REQUIRE(Says(taken.reason, "no member holds layer 3 at step 2"));
}

TEST_CASE("a leader dies: the next one resumes the saved state of its order") {
  SavesFixture f(3);
  f.group.Take(kThree, {"w1", "w2", "w3"});
  REQUIRE(f.group["w1"].trainer->InitialWeights().ok());
  f.Trains("w1", 2);
  const int64_t save = f.Save("w1");
  f.Trains("w1", 2);
  f.group["w1"].Drain();
  f.group.Kill("w1");
  f.Leads("w2");
  f.group["w2"].trainer->ResumeFrom(save, {});
  const auto taken = f.group.Order(f.group.PlanFor(kTwo, {"w2", "w3"}), /*generation=*/2);
  INFO(taken.status().ToString());
  REQUIRE(taken.ok());
  INFO(taken->reason);
  REQUIRE(taken->kept);
  REQUIRE(taken->resumed);
  REQUIRE(f.group["w2"].trainer->optimizer_steps() == 2);
  // The same two steps again: their losses are those of the run before.
  SingleDeviceTrainer again(f.world);
  for (int64_t step = 0; step < 5; ++step) {
    const double loss = again.Step(step);
    if (step >= 2) REQUIRE(f.group["w2"].Step(step) == Approx(loss).epsilon(1e-5));
  }
}

TEST_CASE("a_leader_dies_whose_layers_others_own_and_the_next_one_goes_on_from_its_newest_step") {
  SavesFixture f(3);
  f.group.Take(Replicas("three replicas", {4, 2, 2}, 3), {"w1", "w2", "w3"});
  REQUIRE(f.group["w1"].trainer->InitialWeights().ok());
  f.Trains("w1", 2);
  REQUIRE(*f.group["w1"].trainer->SaveState({}, kMemory) == Kept::kByOwners);
  const int64_t save = f.group["w1"].trainer->events.AwaitSaved().state.about.save;
  f.Trains("w1", 2);
  f.group["w1"].Drain();
  f.group.Kill("w1");
  f.Leads("w2");
  std::vector<PositionRange> leased;
  for (int64_t step = 2; step < 4; ++step) {
    for (const PositionRange& range : Batch(step)) leased.push_back(range);
  }
  const bool others_have_it = GENERATE(false, true);
  if (others_have_it) leased.pop_back();
  f.group["w2"].trainer->ResumeFrom(save, leased);
  const auto taken = f.group.Order(
      f.group.PlanFor(Replicas("two replicas", {4, 4}, 2), {"w2", "w3"}), /*generation=*/2);
  INFO(taken.status().ToString());
  REQUIRE(taken.ok());
  INFO(taken->reason);
  if (others_have_it) {  // nor is there a copy of the save
    REQUIRE(!taken->resumed);
    return;
  }
  REQUIRE(taken->kept);
  REQUIRE(taken->resumed);
  REQUIRE(taken->beyond.size() == 2);
  REQUIRE(taken->beyond[1].optimizer_step == 4);
  REQUIRE(taken->beyond[1].ranges == Batch(3));
  REQUIRE(taken->beyond[1].loss_times_tokens.value_or(0) > 0);
  REQUIRE(taken->steps_replayed == 0);
  REQUIRE(f.group["w2"].trainer->optimizer_steps() == 4);
  f.Trains("w2", 1);
  f.HasTheStateOfOneDevice("w2");
}

TEST_CASE("a leader dies and nothing is to be resumed: the moments are those of its last step") {
  SavesFixture f(2);
  f.group.Take(kTwo, {"w1", "w2"});
  REQUIRE(f.group["w1"].trainer->InitialWeights().ok());
  f.Trains("w1", 2);
  f.Save("w1");
  f.Trains("w1", 2);
  f.group["w1"].Drain();
  f.group.Kill("w1");
  f.Leads("w2");
  const auto taken = f.group.Order(f.group.PlanFor(kOne, {"w2"}), /*generation=*/2);
  REQUIRE(taken.ok());
  INFO(taken->reason);
  REQUIRE(taken->steps_replayed == 2);
  REQUIRE(f.group["w2"].trainer->optimizer_steps() == 4);
  f.HasTheStateOfOneDevice("w2");
}

TEST_CASE("a_leader_dies_after_an_adoption_and_the_next_one_has_the_moments_of_the_adoption") {
  const bool copies_are_whole = GENERATE(false, true);  // which were not reported
  SavesFixture f(2);
  f.group.Take(kTwo, {"w1", "w2"});
  REQUIRE(f.group["w1"].trainer->InitialWeights().ok());
  f.Trains("w1", 1);
  f.Save("w1");
  f.Trains("w1", 2);
  f.AloneAdopts();
  f.Adopts("w1");
  if (copies_are_whole) f.Save("w1");
  f.group["w1"].Step(f.step);
  f.group["w1"].Step(f.step + 1);
  f.group["w1"].Drain();
  f.group.Kill("w1");
  f.Leads("w2");
  f.group["w2"].trainer->committed = 1;
  const auto taken = f.group.Order(f.group.PlanFor(kOne, {"w2"}), /*generation=*/2);
  INFO(taken.status().ToString());
  REQUIRE(taken.ok());
  INFO(taken->reason);
  REQUIRE(f.group["w2"].trainer->optimizer_steps() == 3);
  f.Adopts("w2");
  f.HasTheStateOfOneDevice("w2");
  f.Trains("w2", 2);
}

TEST_CASE("a_leader_dies_before_it_reports_a_save_and_the_next_one_goes_on_from_that") {
  SavesFixture f(3);
  f.group.Take(kThree, {"w1", "w2", "w3"});
  REQUIRE(f.group["w1"].trainer->InitialWeights().ok());
  f.Trains("w1", 2);
  const int64_t reported = f.Save("w1");
  f.Trains("w1", 2);
  f.Save("w1");  // the others forget the one before
  f.group["w1"].Step(f.step);
  f.group["w1"].Drain();
  f.group.Kill("w1");
  f.Leads("w2");
  std::vector<PositionRange> leased;
  for (int64_t step = 2; step < 5; ++step) {
    for (const PositionRange& range : Batch(step)) leased.push_back(range);
  }
  f.group["w2"].trainer->ResumeFrom(reported, leased);
  const auto taken = f.group.Order(f.group.PlanFor(kTwo, {"w2", "w3"}), /*generation=*/2);
  INFO(taken.status().ToString());
  REQUIRE(taken.ok());
  INFO(taken->reason);
  REQUIRE(taken->resumed);
  REQUIRE(taken->beyond.size() == 2);
  REQUIRE(taken->beyond[1].ranges == Batch(3));
  REQUIRE(f.group["w2"].trainer->optimizer_steps() == 4);
  f.HasTheStateOfOneDevice("w2");
  f.Trains("w2", 2);
}

TEST_CASE("parameters replaced since the save, as by a new version, are replaced again") {
  SavesFixture f(2);
  f.group.Take(kTwo, {"w1", "w2"});
  TestWorker& leader = f.group["w1"];
  REQUIRE(leader.trainer->InitialWeights().ok());
  f.Trains("w1", 1);
  f.Save("w1");
  f.Trains("w1", 1);
  f.AloneAdopts();
  f.Adopts("w1");
  f.Trains("w1", 1);
  leader.Drain();
  f.group.Kill("w2");
  const Reconfigured taken = f.group.Take(kOne, {"w1"});
  INFO(taken.reason);
  REQUIRE(taken.kept);
  REQUIRE(taken.steps_replayed == 2);
  f.HasTheStateOfOneDevice("w1");
  f.Trains("w1", 1);
}

TEST_CASE(
    "a death while others' parameters are in, as for a validation, brings the own ones back") {
  SavesFixture f(2);
  f.group.Take(kTwo, {"w1", "w2"});
  TestWorker& leader = f.group["w1"];
  REQUIRE(leader.trainer->InitialWeights().ok());
  f.Trains("w1", 1);
  f.Save("w1");
  f.Trains("w1", 1);
  leader.Drain();
  f.group.Kill("w2");
  REQUIRE_FALSE(leader.trainer->Validate().ok());  // it is in at one of them
  const Reconfigured taken = f.group.Take(kOne, {"w1"});
  INFO(taken.reason);
  REQUIRE(taken.kept);
  f.HasTheStateOfOneDevice("w1");
}

TEST_CASE("parameters_after_the_validation_of_theta_base_are_those_before_it") {
  SavesFixture f(2);
  f.group.Take(kTwo, {"w1", "w2"});
  TestWorker& leader = f.group["w1"];
  REQUIRE(leader.trainer->InitialWeights().ok());
  f.Trains("w1", 2);
  leader.Drain();
  // Nothing was pulled: theta_base is zero, and so differs from all parameters.
  REQUIRE(leader.trainer->Validate().ok());
  f.HasTheStateOfOneDevice("w1");
  f.Trains("w1", 1);
  f.HasTheStateOfOneDevice("w1");
}

TEST_CASE("an interrupted replay is repeated, to the same step") {
  std::atomic<int> cut = 0;  // at which commit from now on
  EngineOptions options;
  options.before_vote = [&](const std::string&, const std::string&) {
    if (cut > 0 && --cut == 0) return absl::AbortedError("the test cuts it");
    return absl::OkStatus();
  };
  SavesFixture f(3, options);
  f.group.Take(kThree, {"w1", "w2", "w3"});
  REQUIRE(f.group["w1"].trainer->InitialWeights().ok());
  f.Trains("w1", 1);
  f.Save("w1");
  f.Trains("w1", 3);
  f.group["w1"].Drain();
  f.group.Kill("w3");
  const IslandPlan plan = f.group.PlanFor(kTwo, {"w1", "w2"});
  cut = 3;  // in the second step of three
  REQUIRE(!f.group.Order(plan).ok());
  REQUIRE(cut == 0);
  const auto taken = f.group.Order(plan);
  INFO(taken.status().ToString());
  REQUIRE(taken.ok());
  INFO(taken->reason);
  REQUIRE(taken->kept);
  REQUIRE(taken->steps_replayed == 3);
  f.Trains("w1", 1);
  f.HasTheStateOfOneDevice("w1");
}

}  // namespace
}  // namespace atl::worker
