// An island whose state is saved, beside one device that trains the same, in tests.

#ifndef ATOLL_TESTS_ISLAND_SAVES_FIXTURE_H_
#define ATOLL_TESTS_ISLAND_SAVES_FIXTURE_H_

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

using namespace std::chrono_literals;

inline constexpr auto kLimit = atl::testing::kHangLimit;
inline constexpr Tier kMemory = Tier::kMemory, kDisk = Tier::kDisk, kRemote = Tier::kRemote;

struct SavesFixture {
  // `remote`: a folder of the world's; empty: none.
  explicit SavesFixture(int workers, EngineOptions engine = {}, const std::string& remote = "",
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

inline const IslandLayout kThree = Pipeline("three stages", {2, 2, 2}, 3);
inline const IslandLayout kTwo = Pipeline("two stages", {3, 3}, 2);
inline const IslandLayout kOne = Pipeline("one stage", {6}, 1);

}  // namespace atl::worker

#endif  // ATOLL_TESTS_ISLAND_SAVES_FIXTURE_H_
