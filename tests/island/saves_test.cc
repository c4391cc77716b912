// Saved states of an island: after the death of a worker that alone held a part of it, training
// goes on where it was, with the losses of an undisturbed run.

#include <atomic>
#include <catch2/catch.hpp>
#include <condition_variable>
#include <filesystem>
#include <fstream>
#include <set>

#include "absl/strings/match.h"
#include "tests/catch/limits.h"
#include "tests/island/group_fixture.h"

namespace atl::worker {
namespace {

using namespace std::chrono_literals;

constexpr auto kLimit = atl::testing::kHangLimit;
constexpr Tier kMemory = Tier::kMemory, kDisk = Tier::kDisk, kRemote = Tier::kRemote;

struct Fixture {
  // `remote`: a folder of the world's; empty: none.
  explicit Fixture(int workers, EngineOptions engine = {}, const std::string& remote = "",
                   bool disks = false, Encoding pushes = Encoding::kFloat32)
      : remote_tier(world.spec.checkpoint.remote =
                        remote.empty() ? "" : absl::StrCat(world.folder, "/", remote)),
        disks(world.disks = disks),
        pushes(world.spec.outer.push_encoding = pushes),
        group(world, workers, 1, engine) {}
  // Trains as one device does.
  void Trains(const NodeId& leader, int steps) {
    for (int i = 0; i < steps; ++i, ++step) {
      INFO("step " << step);
      REQUIRE(group[leader].Step(step) == Approx(alone.Step(step)).epsilon(1e-5));
    }
  }
  // Returns its number.
  int64_t Save(const NodeId& leader, Tier tier = kMemory) {
    LocalCheckpoint about;
    about.job = kJob;
    about.base_version = 3;
    about.inner_step = step;
    const auto saved = group[leader].trainer->SaveState(about, tier);
    INFO(saved.status().ToString());
    REQUIRE(saved.ok());
    REQUIRE(*saved == Kept::kCopied);
    const StateSaved outcome = group[leader].trainer->events.AwaitSaved();
    REQUIRE(outcome.tier == tier);
    INFO(outcome.trouble);
    REQUIRE(!outcome.state.units.empty());
    REQUIRE(outcome.state.about.inner_step == step);
    return outcome.state.about.save;
  }
  // Version 1.
  void Adopts(const NodeId& leader) {
    group.Pulled(PulledValue);
    REQUIRE(group[leader].trainer->AdoptPulled({1, AdoptMode::kReplace}).ToString() == "OK");
  }
  void AloneAdopts() {
    const std::vector<LayerSize>& layers = group["w1"].layers;
    for (int32_t l = 0; l < static_cast<int32_t>(layers.size()); ++l) {
      std::vector<float> values(static_cast<size_t>(layers[l].elements));
      for (size_t i = 0; i < values.size(); ++i)
        values[i] = PulledValue(l, static_cast<int64_t>(i));
      REQUIRE(alone.trainer->SetParameters(l, values).ok());
    }
  }
  static float PulledValue(int32_t layer, int64_t element) {
    return 1e-3f * static_cast<float>((element + layer) % 13);
  }
  // It has followed until now.
  void Leads(const NodeId& name) {
    group[name].follower->Unfollow("it is to lead");
    REQUIRE(group[name].follower->AwaitFree(kLimit).ok());
  }
  void HasTheStateOfOneDevice(const NodeId& leader) {
    const State state = group[leader].Read();
    for (size_t l = 0; l < group[leader].layers.size(); ++l) {
      std::vector<float> own(state[3 * l].size()), first(own.size()), second(own.size());
      REQUIRE(alone.trainer->GetParameters(static_cast<int>(l), own).ok());
      REQUIRE(alone.trainer->GetMoments(static_cast<int>(l), first, second).ok());
      const std::vector<float>* parts[] = {&own, &first, &second};
      for (size_t p = 0; p < 3; ++p) {
        double worst = 0;
        for (size_t i = 0; i < own.size(); ++i) {
          worst = std::max<double>(worst, std::abs(state[3 * l + p][i] - (*parts[p])[i]));
        }
        INFO("layer " << l << ", part " << p);
        REQUIRE(worst < 1e-4);
      }
    }
  }

  World world;
  const std::string remote_tier;
  const bool disks;
  const Encoding pushes;
  TestGroup group;
  SingleDeviceTrainer alone{world};
  int64_t step = 0;
};

const IslandLayout kThree = Pipeline("three stages", {2, 2, 2}, 3);
const IslandLayout kTwo = Pipeline("two stages", {3, 3}, 2);
const IslandLayout kOne = Pipeline("one stage", {6}, 1);

TEST_CASE(
    "a follower that alone held a stage dies: its state comes from copies, and no step is lost") {
  const int steps_since = GENERATE(0, 1, 3);
  Fixture f(2);
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
  Fixture f(3);
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
  Fixture f(2);
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
  Fixture f(3);
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
  Fixture f(3);
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
  Fixture f(2);
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
  Fixture f(2);
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
  Fixture f(3);
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
  Fixture f(2);
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
  Fixture f(2);
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
  Fixture f(2);
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
  Fixture f(3, options);
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

TEST_CASE("all_workers_die_and_the_island_resumes_from_their_disks_in_any_layout") {
  const bool other_layout = GENERATE(false, true);
  Fixture f(3, {}, "", /*disks=*/true);
  f.group.Take(kThree, {"w1", "w2", "w3"});
  REQUIRE(f.group["w1"].trainer->InitialWeights().ok());
  f.Trains("w1", 1);
  f.Save("w1", kDisk);
  f.Trains("w1", 1);
  const int64_t save = f.Save("w1", kDisk);
  f.group["w1"].Drain();
  for (const NodeId name : {"w1", "w2", "w3"}) f.group.Kill(name);
  for (const NodeId name : {"w1", "w2", "w3"}) f.group.Restart(name);
  // Another one leads. Who has no part in the layout sends what is on its disk.
  f.group["w2"].trainer->ResumeFrom(save, {});
  const IslandPlan plan = f.group.PlanFor(other_layout ? kTwo : kThree, {"w2", "w3", "w1"});
  const auto taken = f.group.Order(plan, /*generation=*/2);
  INFO(taken.status().ToString());
  REQUIRE(taken.ok());
  INFO(taken->reason);
  REQUIRE(taken->resumed);
  REQUIRE(f.group["w2"].trainer->optimizer_steps() == 2);
  f.HasTheStateOfOneDevice("w2");
  f.Trains("w2", 1);
  f.Save("w2", kDisk);
  f.Trains("w2", 1);
}

// Lists what every member keeps.
void EachResidual(
    Fixture& f, const std::vector<NodeId>& members,
    const std::function<void(OuterState&, const OuterRange&, std::vector<float>)>& do_) {
  for (const NodeId& name : members) {
    const std::shared_ptr<OuterState> outer = f.group[name].member->outer_exchange().state();
    for (const OuterRange& part : *outer->parts()) {
      std::vector<float> values;
      for (int64_t i = part.range.begin; i < part.range.end; ++i) {
        values.push_back(1e-3f * static_cast<float>((i + 7 * part.layer) % 1009 - 500));
      }
      do_(*outer, part, std::move(values));
    }
  }
}

TEST_CASE("a_state_that_is_resumed_has_the_residual_of_quantised_pushes_that_it_was_saved_with") {
  const Tier tier = GENERATE(kMemory, kDisk, kRemote);
  INFO("tier " << static_cast<int>(tier));
  Fixture f(3, {}, tier == kRemote ? "remote" : "", tier == kDisk, Encoding::kInt4);
  f.group.Take(kThree, {"w1", "w2", "w3"});
  REQUIRE(f.group["w1"].trainer->InitialWeights().ok());
  f.Trains("w1", 1);
  EachResidual(f, {"w1", "w2", "w3"}, [](OuterState& outer, const OuterRange& part, auto values) {
    REQUIRE(outer.Write(OuterKind::kResidual, part.layer, part.range, values).ok());
  });
  const int64_t save = f.Save("w1", tier);
  f.Trains("w1", 1);
  f.group["w1"].Drain();
  std::vector<NodeId> members = {"w2", "w3"};
  f.group.Kill("w1");
  if (tier == kDisk) {
    for (const NodeId name : {"w2", "w3"}) f.group.Kill(name);
    for (const NodeId name : {"w1", "w2", "w3"}) f.group.Restart(name);
    members.push_back("w1");
  } else {
    f.group["w2"].follower->Unfollow("it is to lead");
    REQUIRE(f.group["w2"].follower->AwaitFree(kLimit).ok());
  }
  f.group["w2"].trainer->ResumeFrom(save, {});
  const auto taken = f.group.Order(f.group.PlanFor(kTwo, members), /*generation=*/2);
  INFO(taken.status().ToString());
  REQUIRE(taken.ok());
  REQUIRE(taken->resumed);
  f.group.Pulled([](int32_t, int64_t) { return 0.5f; });
  const auto adopted = f.group["w2"].trainer->AdoptPulled(
      {3, AdoptMode::kKeep, /*reset_moments=*/false, /*keep_residual=*/true});
  REQUIRE(adopted.ToString() == "OK");
  int parts = 0;
  EachResidual(f, {"w2", "w3"}, [&](OuterState& outer, const OuterRange& part, auto values) {
    std::vector<float> own(values.size());
    REQUIRE(outer.Read(OuterKind::kResidual, part.layer, part.range, own).ok());
    REQUIRE(own == values);
    ++parts;
  });
  CHECK(parts >= 6);  // all layers
}

TEST_CASE("one_damaged_residual_on_a_disk_leaves_the_others_as_they_were_saved") {
  Fixture f(2, {}, "", /*disks=*/true, Encoding::kInt4);
  f.group.Take(kTwo, {"w1", "w2"});
  REQUIRE(f.group["w1"].trainer->InitialWeights().ok());
  f.Trains("w1", 1);
  EachResidual(f, {"w1", "w2"}, [](OuterState& outer, const OuterRange& part, auto values) {
    REQUIRE(outer.Write(OuterKind::kResidual, part.layer, part.range, values).ok());
  });
  const int64_t save = f.Save("w1", kDisk);
  f.group["w1"].Drain();
  for (const NodeId name : {"w1", "w2"}) f.group.Kill(name);
  // The first of several that the second stage keeps.
  std::set<std::string> files;
  for (const auto& entry :
       std::filesystem::recursive_directory_iterator(f.world.folder + "/disk-w2")) {
    const bool residual = absl::StartsWith(entry.path().filename().string(), "residual-3-");
    if (residual) files.insert(entry.path().string());
  }
  REQUIRE(files.size() == 1);
  std::fstream damaged(*files.begin(), std::ios::in | std::ios::out | std::ios::binary);
  damaged.seekp(5);
  damaged.put('x');
  damaged.close();
  for (const NodeId name : {"w1", "w2"}) f.group.Restart(name);
  f.group["w1"].trainer->ResumeFrom(save, {});
  const auto taken = f.group.Order(f.group.PlanFor(kTwo, {"w1", "w2"}), /*generation=*/2);
  INFO(taken.status().ToString());
  REQUIRE(taken.ok());
  std::set<int32_t> kept, lost;
  EachResidual(f, {"w1", "w2"}, [&](OuterState& outer, const OuterRange& part, auto values) {
    std::vector<float> own(values.size());
    REQUIRE(outer.Read(OuterKind::kResidual, part.layer, part.range, own).ok());
    (own == values ? kept : lost).insert(part.layer);
  });
  CHECK(lost == std::set<int32_t>{3});
  CHECK(kept == std::set<int32_t>{0, 1, 2, 4, 5});
}

TEST_CASE("a_follower_dies_without_copies_and_its_restart_brings_its_disk_back") {
  Fixture f(2, {}, "", /*disks=*/true);
  f.group.Take(kTwo, {"w1", "w2"});
  REQUIRE(f.group["w1"].trainer->InitialWeights().ok());
  f.Trains("w1", 1);
  f.Save("w1", kDisk);
  f.Trains("w1", 2);
  f.group["w1"].Drain();
  f.group.Restart("w2");
  const Reconfigured taken = f.group.Take(kTwo, {"w1", "w2"});
  INFO(taken.reason);
  REQUIRE(taken.kept);
  REQUIRE(taken.steps_replayed == 2);
  f.HasTheStateOfOneDevice("w1");
  f.Trains("w1", 1);
}

TEST_CASE("after more deaths than copies the remote tier has the state, and no step is lost") {
  Fixture f(3, {}, "remote");
  f.group.Take(kThree, {"w1", "w2", "w3"});
  REQUIRE(f.group["w1"].trainer->InitialWeights().ok());
  f.Trains("w1", 2);
  f.Save("w1", kRemote);
  f.Trains("w1", 1);
  f.Save("w1");
  f.Trains("w1", 1);
  f.group["w1"].Drain();
  f.group.Kill("w2");
  f.group.Kill("w3");
  SECTION("what was written is whole") {
    const Reconfigured taken = f.group.Take(kOne, {"w1"});
    INFO(taken.reason);
    REQUIRE(taken.kept);
    REQUIRE(taken.steps_replayed == 2);
    f.HasTheStateOfOneDevice("w1");
    f.Trains("w1", 2);
  }
  SECTION("a unit is damaged: it is not taken for what it is not") {
    for (const auto& entry : std::filesystem::recursive_directory_iterator(f.remote_tier)) {
      if (!absl::StrContains(entry.path().string(), "unit-4-")) continue;
      std::fstream file(entry.path(), std::ios::in | std::ios::out | std::ios::binary);
      file.seekp(8);
      file.put('x');
    }
    const auto taken = f.group.Order(f.group.PlanFor(kOne, {"w1"}));
    REQUIRE(Says(taken.status().message(), "is damaged: its checksum differs"));
    // From then on it counts as not there.
    const auto again = f.group.Order(f.group.PlanFor(kOne, {"w1"}));
    INFO(again.status().ToString());
    REQUIRE(again.ok());
    REQUIRE(!again->kept);
  }
}

TEST_CASE("a leader and another one die: the remote tier is what the next leader resumes") {
  Fixture f(3, {}, "remote");
  f.group.Take(kThree, {"w1", "w2", "w3"});
  REQUIRE(f.group["w1"].trainer->InitialWeights().ok());
  f.Trains("w1", 2);
  const int64_t save = f.Save("w1", kRemote);
  f.Trains("w1", 1);
  f.group["w1"].Drain();
  f.group.Kill("w1");
  f.group.Kill("w2");
  f.Leads("w3");
  f.group["w3"].trainer->ResumeFrom(save, {});
  const auto taken = f.group.Order(f.group.PlanFor(kOne, {"w3"}), /*generation=*/2);
  INFO(taken.status().ToString());
  REQUIRE(taken.ok());
  REQUIRE(taken->resumed);
  REQUIRE(f.group["w3"].trainer->optimizer_steps() == 2);
}

TEST_CASE("a remote tier that cannot be written is reported, and training goes on") {
  Fixture f(2, {}, "text/in-the-way");  // below a file
  f.group.Take(kTwo, {"w1", "w2"});
  REQUIRE(f.group["w1"].trainer->InitialWeights().ok());
  f.Trains("w1", 1);
  REQUIRE(*f.group["w1"].trainer->SaveState({}, kRemote) == Kept::kCopied);
  f.Trains("w1", 1);
  const StateSaved outcome = f.group["w1"].trainer->events.AwaitSaved();
  REQUIRE(outcome.state.units.empty());
  REQUIRE(Says(outcome.trouble, "in-the-way"));
  f.Save("w1");
  f.Trains("w1", 1);
}

TEST_CASE("replicas that own the whole state between them keep no copies of each other") {
  Fixture f(2);
  f.group.Take(Replicas("two replicas", {4, 4}, 2), {"w1", "w2"});
  REQUIRE(f.group["w1"].trainer->InitialWeights().ok());
  const auto saved = f.group["w1"].trainer->SaveState({}, kMemory);
  REQUIRE(saved.ok());
  REQUIRE(*saved == Kept::kByOwners);
}

}  // namespace
}  // namespace atl::worker
