// Saved states that come back from disks and the remote tier.

#include <catch2/catch.hpp>

#include "tests/island/saves_fixture.h"

namespace atl::worker {
namespace {

TEST_CASE("all_workers_die_and_the_island_resumes_from_their_disks_in_any_layout") {
  const bool other_layout = GENERATE(false, true);
  SavesFixture f(3, {}, "", /*disks=*/true);
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
    SavesFixture& f, const std::vector<NodeId>& members,
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
  SavesFixture f(3, {}, tier == kRemote ? "remote" : "", tier == kDisk, Encoding::kInt4);
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
  SavesFixture f(2, {}, "", /*disks=*/true, Encoding::kInt4);
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
  SavesFixture f(2, {}, "", /*disks=*/true);
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
  SavesFixture f(3, {}, "remote");
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
  SavesFixture f(3, {}, "remote");
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
  SavesFixture f(2, {}, "text/in-the-way");  // below a file
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
  SavesFixture f(2);
  f.group.Take(Replicas("two replicas", {4, 4}, 2), {"w1", "w2"});
  REQUIRE(f.group["w1"].trainer->InitialWeights().ok());
  const auto saved = f.group["w1"].trainer->SaveState({}, kMemory);
  REQUIRE(saved.ok());
  REQUIRE(*saved == Kept::kByOwners);
}

}  // namespace
}  // namespace atl::worker
