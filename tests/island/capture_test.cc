// Tests that what crosses the bus during steps is what it was when it was requested, bit for bit,
// however late it is copied, and the devices compute meanwhile: pseudo-gradients and what is
// adopted; and saves.

#include <atomic>
#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <thread>

#include "tests/island/group_fixture.h"
#include "tests/island/solo_island.h"

namespace atl::worker {
namespace {

using namespace std::chrono_literals;

LocalDevice OnCpu(int index) { return {index, NewCpuBackend(1), NewCpuBackend(1)}; }
LocalDevice OnDevice(int index) { return NewDevice(index); }

// A device that has no room for more than this.
std::function<LocalDevice(int)> Tight(int64_t memory_bytes) {
  return [memory_bytes](int index) {
    LocalDevice device = NewDevice(index);
    device.memory_bytes = memory_bytes;
    return device;
  };
}

// With a version to start from.
class TrainedIsland : public SoloIsland {
 public:
  // With `saves`, its disk, it may be a process that goes on from one of these, and is not set up
  // yet.
  TrainedIsland(const World& world, const std::function<LocalDevice(int)>& make_device,
                Encoding encoding, const std::string& saves = "", bool goes_on = false)
      : SoloIsland({.spec = world.spec, .make_device = make_device, .saves = saves}) {
    spec.outer.push_encoding = encoding;
    Prepares();
    if (goes_on) return;
    if (!saves.empty()) SetsUp();
    MakesWeights();
    Adopt(LayerBuffers(delta().values), AdoptMode::kReplace);
  }

  void Steps(int64_t begin, int64_t end) {
    for (int64_t step = begin; step < end; ++step) {
      Does<StepDone>(TrainStep{Batch(step), GetLearningRate(step)});
    }
  }
  void Capture() {
    Does<DeltaCaptured>(CaptureDelta{{0, 1, 1, 0}, spec.outer.push_encoding, Shards()});
  }
  void Adopt(const LayerBuffers& theta, AdoptMode mode) { Adopts(theta, {0, mode, false, true}); }
  void Pulls(const LayerBuffers& theta, int64_t pull = 1) {
    *pulled() = theta;
    leader().Stage({pull, 0});
  }
  void AdoptsPulled() { Does<Adopted>(AdoptPulled{0, AdoptMode::kCarry, false, true}); }
  Reconfigured SetsUp(int64_t resume = 0) {
    Reconfigure command{kJob, 0, 1, IslandPlan()};
    command.resume = resume;
    return Does<Reconfigured>(command);
  }
  // The number of the save.
  int64_t Saves(int64_t step, Tier tier = Tier::kDisk) {
    Does<StateCopied>(SaveState{{kJob, 0, 0, step, {}}, tier});
    const StateSaved saved = events().AwaitSaved();
    REQUIRE(saved.trouble.empty());
    return saved.state.about.save;
  }
  int64_t optimizer_steps() { return trainer().optimizer_steps(); }
};

void RequireSamePush(const Delta& a, const Delta& b) {
  REQUIRE(a.encoding == b.encoding);
  REQUIRE(a.values == b.values);
  REQUIRE(a.encoded == b.encoded);
}

void RequirePushAlike(TrainedIsland& a, TrainedIsland& b) {
  for (TrainedIsland* solo : {&a, &b}) {
    solo->Capture();
    REQUIRE(solo->events().AwaitReady().reason.empty());
  }
  RequireSamePush(a.delta(), b.delta());
}

TEST_CASE("pushes are the host's bit for bit, though copied only after two more steps") {
  const World world;
  const Encoding encoding = GENERATE(Encoding::kFloat32, Encoding::kInt4);
  TrainedIsland host(world, OnCpu, encoding), device(world, OnDevice, encoding);
  const LayerBuffers version = host.Theta();
  for (int round = 0; round < 2; ++round) {
    const int64_t step = 5 * round;
    host.Steps(step, step + 3);
    host.Capture();
    REQUIRE(host.events().AwaitReady().reason.empty());
    device.Steps(step, step + 3);
    LayerGate().Close();
    device.Capture();
    device.Steps(step + 3, step + 5);
    LayerGate().Open();
    REQUIRE(device.events().AwaitReady().reason.empty());
    RequireSamePush(device.delta(), host.delta());
    host.Steps(step + 3, step + 5);
    // The steps trained meanwhile are carried over, and the residual comes with the next push.
    host.Adopt(version, AdoptMode::kCarry);
    device.Adopt(version, AdoptMode::kCarry);
    REQUIRE(device.Theta() == host.Theta());
  }
  CHECK(host.Theta() != version);
}

TEST_CASE("a device that has no room for a copy of its parameters gives them at once") {
  const World world;
  TrainedIsland host(world, OnCpu, Encoding::kFloat32);
  host.Steps(0, 3);
  host.Capture();
  REQUIRE(host.events().AwaitReady().reason.empty());
  const int64_t needed = host.events().memory().devices.at(0).peak_bytes;
  TrainedIsland device(world, Tight(needed), Encoding::kFloat32);
  device.Steps(0, 3);
  CHECK(device.events().memory().devices.at(0).peak_bytes <= needed);
  device.Capture();
  device.Steps(3, 4);
  REQUIRE(device.events().AwaitReady().reason.empty());
  RequireSamePush(device.delta(), host.delta());
  CHECK(device.events().memory().devices.at(0).peak_bytes <= needed);  // it took nothing
}

TEST_CASE("a capture that is interrupted leaves nothing behind, and the next one has all of it") {
  const World world;
  TrainedIsland plain(world, OnDevice, Encoding::kInt8),
      interrupted(world, OnDevice, Encoding::kInt8);
  interrupted.Steps(0, 2);
  LayerGate().Close();
  interrupted.Capture();
  interrupted.leader().Interrupt("another plan");
  LayerGate().Open();
  CHECK(interrupted.events().AwaitReady().reason == "interrupted");
  plain.Steps(0, 2);
  plain.Capture();
  interrupted.Capture();
  REQUIRE(plain.events().AwaitReady().reason.empty());
  REQUIRE(interrupted.events().AwaitReady().reason.empty());
  RequireSamePush(interrupted.delta(), plain.delta());
}

// A version that differs from theirs.
LayerBuffers Version1(LayerBuffers theta) {
  for (std::vector<float>& layer : theta) {
    for (size_t i = 0; i < layer.size(); ++i) layer[i] += 1e-3f * static_cast<float>(i % 7);
  }
  return theta;
}

TEST_CASE("a pulled version is brought to the device beside steps, and adopted without the bus") {
  const World world;
  TrainedIsland host(world, OnCpu, Encoding::kFloat32), device(world, OnDevice, Encoding::kFloat32);
  const LayerBuffers version = Version1(host.Theta());
  const bool captures = GENERATE(true, false);
  for (TrainedIsland* solo : {&host, &device}) {
    solo->Steps(0, 3);
    if (!captures) continue;
    solo->Capture();
    REQUIRE(solo->events().AwaitReady().reason.empty());
    solo->Steps(3, 5);
  }
  LayerGate().Close();
  device.Pulls(version, 7);
  device.Steps(5, 7);
  CHECK_FALSE(device.events().pulled());
  LayerGate().Open();
  CHECK(device.events().AwaitPulled().pull == 7);
  device.Steps(7, 8);
  LayerGate().Close();
  device.AdoptsPulled();
  device.Steps(8, 9);
  LayerGate().Open();
  host.Steps(5, 8);
  host.Adopt(version, AdoptMode::kCarry);
  host.Steps(8, 9);
  REQUIRE(device.Theta() == host.Theta());
  // The next push has the same base.
  RequirePushAlike(device, host);
}

TEST_CASE("a staged version that something came between is adopted all the same") {
  const World world;
  TrainedIsland host(world, OnCpu, Encoding::kFloat32), device(world, OnDevice, Encoding::kFloat32);
  const LayerBuffers version = Version1(host.Theta()), newer = Version1(version);
  device.Steps(0, 3);
  host.Steps(0, 3);
  SECTION("another capture, of which it knows nothing") {
    device.Pulls(version);
    device.events().AwaitPulled();
    for (TrainedIsland* solo : {&host, &device}) {
      solo->Capture();
      REQUIRE(solo->events().AwaitReady().reason.empty());
      solo->Steps(3, 4);
    }
    host.Adopt(version, AdoptMode::kCarry);
    device.AdoptsPulled();
  }
  SECTION("an interrupt") {
    LayerGate().Close();
    device.Pulls(version);
    device.leader().Interrupt("another plan");
    LayerGate().Open();
    device.events().AwaitPulled();
    host.Adopt(version, AdoptMode::kCarry);
    device.AdoptsPulled();
  }
  SECTION("a newer pull") {
    LayerGate().Close();
    device.Pulls(version);
    LayerGate().AwaitStall();
    device.leader().Stage({1, 0});    // comes too late
    device.leader().CancelStaging();  // waits for no device
    CHECK(device.leader().staging());
    LayerGate().Open();
    device.events().AwaitStagingEnds();
    device.Pulls(newer, 2);
    CHECK(device.events().AwaitPulled().pull == 2);
    host.Adopt(newer, AdoptMode::kCarry);
    device.AdoptsPulled();
  }
  REQUIRE(device.Theta() == host.Theta());
}

TEST_CASE("a pull that ends in the middle of a step is staged behind it") {
  const World world;
  TrainedIsland host(world, OnCpu, Encoding::kFloat32), device(world, OnDevice, Encoding::kFloat32);
  const LayerBuffers version = Version1(host.Theta());
  *device.pulled() = version;
  device.Steps(0, 2);
  device.leader().Enqueue(TrainStep{Batch(2), GetLearningRate(2)});
  device.leader().Stage({5, 0});
  CHECK(device.events().AwaitPulled().pull == 5);
  CHECK(std::holds_alternative<StepDone>(device.events().AwaitEnd()));
  LayerGate().Close();
  device.AdoptsPulled();
  LayerGate().Open();
  host.Steps(0, 3);
  host.Adopt(version, AdoptMode::kCarry);
  REQUIRE(device.Theta() == host.Theta());
}

TEST_CASE("without steps to carry over nothing is staged") {
  const World world;
  TrainedIsland device(world, OnDevice, Encoding::kFloat32);
  const LayerBuffers version = Version1(device.Theta());
  LayerGate().Close();
  device.Pulls(version);
  CHECK(device.events().AwaitPulled().pull == 1);
  LayerGate().Open();
}

TEST_CASE("a_worker_that_goes_on_from_its_disk_makes_the_steps_of_one_that_never_stopped") {
  const World world;
  const std::string saves = world.folder + "/saves";
  TrainedIsland plain(world, OnCpu, Encoding::kFloat32);
  const LayerBuffers base = plain.Theta();
  plain.Steps(0, 9);
  int64_t save = 0;
  {
    TrainedIsland killed(world, OnCpu, Encoding::kFloat32, saves);
    killed.Steps(0, 5);
    save = killed.Saves(5);
    killed.Steps(5, 6);  // lost with the process
  }
  TrainedIsland back(world, OnCpu, Encoding::kFloat32, saves, /*goes_on=*/true);
  const bool with_save = GENERATE(true, false);
  const Reconfigured done = back.SetsUp(with_save ? save : 0);
  CHECK(done.kept);
  CHECK(done.resumed == with_save);
  if (with_save) {
    back.Adopt(base, AdoptMode::kKeep);
    back.Steps(5, 9);
    REQUIRE(back.Theta() == plain.Theta());
    RequirePushAlike(back, plain);
    return;
  }
  // The committed version has advanced: its parameters, and this worker's moments.
  back.Adopt(base, AdoptMode::kReplace);
  REQUIRE(back.Theta() == base);
  CHECK(back.optimizer_steps() == 5);
}

TEST_CASE("a_worker_that_has_lost_its_disk_goes_on_from_the_remote_tier") {
  World world;
  const std::string saves = world.folder + "/saves";
  world.spec.checkpoint.remote = world.folder + "/remote";
  TrainedIsland plain(world, OnCpu, Encoding::kFloat32);
  const LayerBuffers base = plain.Theta();
  plain.Steps(0, 6);
  int64_t save = 0;
  {
    TrainedIsland killed(world, OnCpu, Encoding::kFloat32, saves);
    killed.Steps(0, 4);
    save = killed.Saves(4);
    CHECK(killed.Saves(4, Tier::kRemote) == save);
    killed.Steps(4, 5);
    CHECK(killed.Saves(5, Tier::kRemote) > save);
  }
  std::filesystem::remove_all(saves);
  TrainedIsland back(world, OnCpu, Encoding::kFloat32, saves, /*goes_on=*/true);
  CHECK(back.SetsUp(save).resumed);
  back.Adopt(base, AdoptMode::kKeep);
  back.Steps(4, 6);
  REQUIRE(back.Theta() == plain.Theta());
}

TEST_CASE("a_save_that_is_damaged_is_not_resumed_from") {
  const World world;
  const std::string saves = world.folder + "/saves";
  int64_t save = 0;
  {
    TrainedIsland killed(world, OnCpu, Encoding::kFloat32, saves);
    killed.Steps(0, 2);
    save = killed.Saves(2);
  }
  int damaged = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(saves)) {
    if (!entry.is_regular_file() || entry.path().filename() == "manifest") continue;
    std::fstream file(entry.path(), std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(7);
    file.put('x');
    ++damaged;
  }
  REQUIRE(damaged > 0);
  TrainedIsland back(world, OnCpu, Encoding::kFloat32, saves, /*goes_on=*/true);
  Reconfigure command{kJob, 0, 1, IslandPlan()};
  command.resume = save;
  REQUIRE_FALSE(back.trainer().Do<Reconfigured>(command).ok());
  CHECK_FALSE(back.SetsUp(save).resumed);  // what is damaged is remembered
}

// Layouts of two workers: stages, stages of two devices each, and replicas that own half of the
// optimizer's state each.
IslandLayout LayoutOfTwo(int which) {
  IslandLayout layout = Pipeline("two stages", {3, 3}, 2);
  if (which == 1) layout.tensor_parallel = 2;
  if (which < 2) return layout;
  layout = Replicas("owners", {4, 4}, 2);
  layout.optimizer_copies = 1;
  return layout;
}

TEST_CASE("members of an island take what is adopted while it trains on") {
  const World world;
  TestGroup group(world, 2, 2);
  const IslandLayout layout = LayoutOfTwo(GENERATE(0, 1, 2));
  group.Take(layout, {"w1", "w2"});
  TestWorker& leader = group["w1"];
  REQUIRE(leader.trainer->InitialWeights().ToString() == "OK");
  const auto version = [](int64_t version) {
    return [version](int32_t layer, int64_t i) {
      return 1e-3f * static_cast<float>((i + layer + 3 * version) % 11);
    };
  };
  group.Pulled(version(0));
  REQUIRE(leader.trainer->AdoptPulled({0, AdoptMode::kReplace}).ToString() == "OK");
  leader.Step(0);
  group.Pulled(version(1));
  LayerGate().Close();
  leader.trainer->leader().Stage({1, 0});
  leader.Step(1);
  leader.Step(2);
  CHECK_FALSE(leader.trainer->events.pulled());
  LayerGate().Open();
  leader.trainer->events.AwaitPulled();
  const State before = leader.Read();
  LayerGate().Close();
  REQUIRE(leader.trainer->AdoptPulled({1, AdoptMode::kCarry}).ToString() == "OK");
  LayerGate().Open();
  const State after = leader.Read();
  for (size_t l = 0; l < leader.layers.size(); ++l) {
    std::vector<float> theta(before[3 * l].size()), base(theta.size());
    const auto layer = static_cast<int32_t>(l);
    for (size_t i = 0; i < theta.size(); ++i) {
      const auto element = static_cast<int64_t>(i);
      theta[i] = before[3 * l][i] + (version(1)(layer, element) - version(0)(layer, element));
    }
    REQUIRE(after[3 * l] == theta);
    REQUIRE(after[3 * l + 1] == before[3 * l + 1]);
    REQUIRE(leader.member->outer_exchange().ReadLayer(OuterKind::kBase, layer, base).ok());
    for (size_t i = 0; i < base.size(); ++i) {
      REQUIRE(base[i] == version(1)(layer, static_cast<int64_t>(i)));
    }
  }
}

TEST_CASE("a_pseudo_gradient_of_an_earlier_attempt_changes_nothing_of_a_later_one") {
  World world;
  testing::Gate gate;
  world.gates["w2"] = &gate;
  TestGroup group(world, 2, 2);
  const IslandLayout layout = LayoutOfTwo(GENERATE(0, 2));
  group.Take(layout, {"w1", "w2"});
  TestWorker& leader = group["w1"];
  REQUIRE(leader.trainer->InitialWeights().ToString() == "OK");
  group.Pulled(
      [](int32_t layer, int64_t i) { return 1e-3f * static_cast<float>((i + layer) % 7); });
  REQUIRE(leader.trainer->AdoptPulled({0, AdoptMode::kReplace}).ToString() == "OK");
  leader.Step(0);
  const CaptureDelta command{{0, 1, 1, 0}, Encoding::kFloat32, {}};
  // A follower is late: the leader interrupts it and sets the island up again.
  gate.Close();
  REQUIRE(leader.trainer->CaptureDelta(command).ToString() == "OK");
  gate.AwaitStall();
  leader.trainer->Interrupt("a member is lost");
  CHECK_FALSE(leader.trainer->events.AwaitReady().ok);
  absl::Status status;
  const IslandPlan next = group.PlanFor(layout, {"w1", "w2"});
  std::atomic<bool> set_up = false;
  std::thread sets_up([&] {
    status = group.Order(next).status();
    set_up = true;
  });
  // With the late one under way, if it is not waited for.
  for (int i = 0; i < 200 && !set_up; ++i) std::this_thread::sleep_for(10ms);
  gate.Open();
  sets_up.join();
  REQUIRE(status.ToString() == "OK");
  const auto outer = [&](const NodeId& name) {
    return group[name].member->outer_exchange().state();
  };
  // Whatever it still does ends before the next one begins.
  const State trained = leader.Read();
  CHECK_FALSE(outer("w2")->tag().captured);
  REQUIRE(leader.trainer->CaptureDelta(command).ToString() == "OK");
  REQUIRE(leader.trainer->events.AwaitReady().reason.empty());
  for (const NodeId name : {"w1", "w2"}) {
    REQUIRE(outer(name)->tag().captured == command.contribution);
    for (size_t p = 0; p < outer(name)->parts()->size(); ++p) {
      const OuterRange& part = (*outer(name)->parts())[p];
      for (int64_t i = part.range.begin; i < part.range.end; ++i) {
        const float base = 1e-3f * static_cast<float>((i + part.layer) % 7);
        const float theta = trained[3 * static_cast<size_t>(part.layer)][static_cast<size_t>(i)];
        const size_t at = static_cast<size_t>(i - part.range.begin);
        REQUIRE(outer(name)->delta()->values[p][at] == base - theta);
      }
    }
  }
}

}  // namespace
}  // namespace atl::worker
