// What crosses the bus during steps is what it was when it was requested, bit for bit, however late
// it is copied, and the devices compute meanwhile: pseudo-gradients and what is adopted; and saves.

#include <atomic>
#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <thread>

#include "tests/island/group_fixture.h"
#include "worker/runtime/compute_thread.h"
#include "worker/runtime/island.h"
#include "worker/runtime/testing/island_events.h"

namespace atl::worker {
namespace {

using namespace std::chrono_literals;

using MakeDevice = std::function<LocalDevice(int index)>;

LocalDevice OnCpu(int index) { return {index, NewCpuBackend(1), NewCpuBackend(1)}; }
LocalDevice OnDevice(int index) { return NewDevice(index); }

// A device that has no room for more than this.
MakeDevice Tight(int64_t memory_bytes) {
  return [memory_bytes](int index) {
    LocalDevice device = NewDevice(index);
    device.memory_bytes = memory_bytes;
    return device;
  };
}

// An island of one worker on one device, without daemons.
class SoloIsland {
 public:
  // With `saves`, its disk, it may be a process that goes on from one of these, and is not set up
  // yet.
  SoloIsland(const World& world, const MakeDevice& make_device, Encoding encoding,
             const std::string& saves = "", bool goes_on = false) {
    GroupOptions options;
    options.saves_folder = saves;
    options.link.name = "w1";
    options.link.incarnation = 1;
    options.device_name = "device";
    options.make_devices = [make_device] {
      std::vector<LocalDevice> devices;
      devices.push_back(make_device(0));
      return devices;
    };
    member_ = GroupMember::Create(std::move(options)).value();
    trainer_ = std::make_unique<GroupTrainer>(member_.get(), nullptr,
                                              [this](const MemorySeen& m) { memory = m; });
    trainer_->SetOnSaved([this](const GroupTrainer::SaveOutcome& outcome) {
      events.Post(StateSaved{outcome.state, outcome.trouble, outcome.tier});
    });
    island_ = std::make_unique<Island>(trainer_.get(), IslandOptions(),
                                       Island::Hooks{[this](Event e) { events.Post(e); }});
    spec_ = world.spec;
    spec_.layout.island = IslandScope::kWorker;
    spec_.outer.push_encoding = encoding;
    facts_ = Does<Prepared>(Prepare{kJob, spec_}).facts;
    if (goes_on) return;
    if (!saves.empty()) SetsUp();
    Does<InitialWeightsMade>(MakeInitialWeights{});
    Does<DeltaCaptured>(CaptureDelta{{0, 1, 1, kNoVersion}, Encoding::kFloat32, {}});
    REQUIRE(events.AwaitReady().reason.empty());
    const LayerBuffers initial = island_->delta()->values;
    Adopt(initial, AdoptMode::kReplace);
  }
  ~SoloIsland() { island_.reset(); }

  template <typename T>
  T Does(const Action& command) {
    island_->ForgetInterrupts();
    island_->Run(command);
    const Event last = events.last();
    if (const auto* failed = std::get_if<CommandFailed>(&last)) FAIL(failed->reason);
    if (const auto* refused = std::get_if<PrepareFailed>(&last)) FAIL(refused->reason);
    REQUIRE(std::holds_alternative<T>(last));
    return std::get<T>(last);
  }
  void Steps(int64_t begin, int64_t end) {
    for (int64_t step = begin; step < end; ++step) {
      Does<StepDone>(TrainStep{Batch(step), GetLearningRate(step)});
    }
  }
  void Capture() {
    CaptureDelta command{{0, 1, 1, 0}, spec_.outer.push_encoding, {}};
    for (size_t l = 0; l < facts_.layers.size(); ++l) {
      command.shards.push_back(
          {static_cast<ShardId>(l), static_cast<int32_t>(l), 0, facts_.layers[l].elements});
    }
    Does<DeltaCaptured>(command);
  }
  void Adopt(const LayerBuffers& theta, AdoptMode mode) {
    *island_->pulled() = theta;
    Does<Adopted>(AdoptPulled{0, mode, false, true});
  }
  void Pulls(const LayerBuffers& theta, int64_t pull = 1) {
    *island_->pulled() = theta;
    island_->ForgetInterrupts();
    island_->StagePulled({pull, 0}, island_->StagingTicket());
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
    const StateSaved saved = events.AwaitSaved();
    REQUIRE(saved.trouble.empty());
    return saved.state.about.save;
  }
  LayerBuffers Theta() {
    LayerBuffers theta;
    for (const LayerSize& layer : facts_.layers) {
      const LayerShard whole{static_cast<int32_t>(theta.size()), 0, {1}};
      theta.emplace_back(layer.elements);
      const ShardParts parameters{theta.back(), {}, {}};
      REQUIRE(
          member_->layers().GetShard(member_->name(), whole, {0, layer.elements}, parameters).ok());
    }
    return theta;
  }
  const Delta& delta() const { return *island_->delta(); }
  int64_t optimizer_steps() const { return trainer_->optimizer_steps(); }
  Island& island() { return *island_; }

  IslandEvents events;
  MemorySeen memory;

 private:
  std::unique_ptr<GroupMember> member_;
  std::unique_ptr<GroupTrainer> trainer_;
  std::unique_ptr<Island> island_;
  JobSpec spec_;
  JobFacts facts_;
};

void RequireSamePush(const Delta& a, const Delta& b) {
  REQUIRE(a.encoding == b.encoding);
  REQUIRE(a.values == b.values);
  REQUIRE(a.encoded == b.encoded);
}

void RequirePushAlike(SoloIsland& a, SoloIsland& b) {
  for (SoloIsland* solo : {&a, &b}) {
    solo->Capture();
    REQUIRE(solo->events.AwaitReady().reason.empty());
  }
  RequireSamePush(a.delta(), b.delta());
}

TEST_CASE("pushes are the host's bit for bit, though copied only after two more steps") {
  const World world;
  const Encoding encoding = GENERATE(Encoding::kFloat32, Encoding::kInt4);
  SoloIsland host(world, OnCpu, encoding), device(world, OnDevice, encoding);
  const LayerBuffers version = host.Theta();
  for (int round = 0; round < 2; ++round) {
    const int64_t step = 5 * round;
    host.Steps(step, step + 3);
    host.Capture();
    REQUIRE(host.events.AwaitReady().reason.empty());
    device.Steps(step, step + 3);
    LayerGate().Close();
    device.Capture();
    device.Steps(step + 3, step + 5);
    LayerGate().Open();
    REQUIRE(device.events.AwaitReady().reason.empty());
    RequireSamePush(device.delta(), host.delta());
    host.Steps(step + 3, step + 5);
    // What was trained meanwhile is carried over, and the residual comes with the next push.
    host.Adopt(version, AdoptMode::kCarry);
    device.Adopt(version, AdoptMode::kCarry);
    REQUIRE(device.Theta() == host.Theta());
  }
  CHECK(host.Theta() != version);
}

TEST_CASE("a device that has no room for a copy of its parameters gives them at once") {
  const World world;
  SoloIsland host(world, OnCpu, Encoding::kFloat32);
  host.Steps(0, 3);
  host.Capture();
  REQUIRE(host.events.AwaitReady().reason.empty());
  const int64_t needed = host.memory.devices.at(0).peak_bytes;
  SoloIsland device(world, Tight(needed), Encoding::kFloat32);
  device.Steps(0, 3);
  CHECK(device.memory.devices.at(0).peak_bytes <= needed);
  device.Capture();
  device.Steps(3, 4);
  REQUIRE(device.events.AwaitReady().reason.empty());
  RequireSamePush(device.delta(), host.delta());
  CHECK(device.memory.devices.at(0).peak_bytes <= needed);  // it took nothing
}

TEST_CASE("a capture that is interrupted leaves nothing behind, and the next one has all of it") {
  const World world;
  SoloIsland plain(world, OnDevice, Encoding::kInt8), interrupted(world, OnDevice, Encoding::kInt8);
  interrupted.Steps(0, 2);
  LayerGate().Close();
  interrupted.Capture();
  interrupted.island().Interrupt("another plan");
  LayerGate().Open();
  CHECK(interrupted.events.AwaitReady().reason == "interrupted");
  plain.Steps(0, 2);
  plain.Capture();
  interrupted.Capture();
  REQUIRE(plain.events.AwaitReady().reason.empty());
  REQUIRE(interrupted.events.AwaitReady().reason.empty());
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
  SoloIsland host(world, OnCpu, Encoding::kFloat32), device(world, OnDevice, Encoding::kFloat32);
  const LayerBuffers version = Version1(host.Theta());
  const bool captures = GENERATE(true, false);
  for (SoloIsland* solo : {&host, &device}) {
    solo->Steps(0, 3);
    if (!captures) continue;
    solo->Capture();
    REQUIRE(solo->events.AwaitReady().reason.empty());
    solo->Steps(3, 5);
  }
  LayerGate().Close();
  device.Pulls(version, 7);
  device.Steps(5, 7);
  CHECK_FALSE(device.events.pulled());
  LayerGate().Open();
  CHECK(device.events.AwaitPulled().pull == 7);
  device.Steps(7, 8);
  LayerGate().Close();
  device.AdoptsPulled();
  device.Steps(8, 9);
  LayerGate().Open();
  host.Steps(5, 8);
  host.Adopt(version, AdoptMode::kCarry);
  host.Steps(8, 9);
  REQUIRE(device.Theta() == host.Theta());
  // What they push next has the same base.
  RequirePushAlike(device, host);
}

TEST_CASE("a staged version that something came between is adopted all the same") {
  const World world;
  SoloIsland host(world, OnCpu, Encoding::kFloat32), device(world, OnDevice, Encoding::kFloat32);
  const LayerBuffers version = Version1(host.Theta()), newer = Version1(version);
  device.Steps(0, 3);
  host.Steps(0, 3);
  SECTION("another capture, of which it knows nothing") {
    device.Pulls(version);
    device.events.AwaitPulled();
    for (SoloIsland* solo : {&host, &device}) {
      solo->Capture();
      REQUIRE(solo->events.AwaitReady().reason.empty());
      solo->Steps(3, 4);
    }
    host.Adopt(version, AdoptMode::kCarry);
    device.AdoptsPulled();
  }
  SECTION("an interrupt") {
    LayerGate().Close();
    device.Pulls(version);
    device.island().Interrupt("another plan");
    LayerGate().Open();
    device.events.AwaitPulled();
    host.Adopt(version, AdoptMode::kCarry);
    device.AdoptsPulled();
  }
  SECTION("a newer pull") {
    const int64_t ticket = device.island().StagingTicket();
    LayerGate().Close();
    device.Pulls(version);
    LayerGate().AwaitStall();
    device.island().CancelStaging();  // waits for no device
    CHECK(device.island().staging());
    LayerGate().Open();
    device.events.AwaitStagingEnds();
    CHECK_FALSE(device.island().staging());
    *device.island().pulled() = newer;            // it is not read
    device.island().StagePulled({1, 0}, ticket);  // came too late
    CHECK_FALSE(device.events.pulled());
    device.Pulls(newer, 2);
    CHECK(device.events.AwaitPulled().pull == 2);
    host.Adopt(newer, AdoptMode::kCarry);
    device.AdoptsPulled();
  }
  REQUIRE(device.Theta() == host.Theta());
}

TEST_CASE("a pull that ends in the middle of a step is staged behind it") {
  const World world;
  SoloIsland host(world, OnCpu, Encoding::kFloat32), device(world, OnDevice, Encoding::kFloat32);
  const LayerBuffers version = Version1(host.Theta());
  *device.island().pulled() = version;
  {
    ComputeThread compute(&device.island());
    for (int64_t step = 0; step < 3; ++step) {
      compute.Enqueue(TrainStep{Batch(step), GetLearningRate(step)});
    }
    compute.Stage({5, 0});
    CHECK(device.events.AwaitPulled().pull == 5);
  }
  LayerGate().Close();
  device.AdoptsPulled();
  LayerGate().Open();
  host.Steps(0, 3);
  host.Adopt(version, AdoptMode::kCarry);
  REQUIRE(device.Theta() == host.Theta());
}

TEST_CASE("without steps to carry over nothing is staged") {
  const World world;
  SoloIsland device(world, OnDevice, Encoding::kFloat32);
  const LayerBuffers version = Version1(device.Theta());
  LayerGate().Close();
  device.Pulls(version);
  CHECK(device.events.pulled());
  LayerGate().Open();
}

TEST_CASE("a_worker_that_goes_on_from_its_disk_makes_the_steps_of_one_that_never_stopped") {
  const World world;
  const std::string saves = world.folder + "/saves";
  SoloIsland plain(world, OnCpu, Encoding::kFloat32);
  const LayerBuffers base = plain.Theta();
  plain.Steps(0, 9);
  int64_t save = 0;
  {
    SoloIsland killed(world, OnCpu, Encoding::kFloat32, saves);
    killed.Steps(0, 5);
    save = killed.Saves(5);
    killed.Steps(5, 6);  // lost with the process
  }
  SoloIsland back(world, OnCpu, Encoding::kFloat32, saves, /*goes_on=*/true);
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
  SoloIsland plain(world, OnCpu, Encoding::kFloat32);
  const LayerBuffers base = plain.Theta();
  plain.Steps(0, 6);
  int64_t save = 0;
  {
    SoloIsland killed(world, OnCpu, Encoding::kFloat32, saves);
    killed.Steps(0, 4);
    save = killed.Saves(4);
    CHECK(killed.Saves(4, Tier::kRemote) == save);
    killed.Steps(4, 5);
    CHECK(killed.Saves(5, Tier::kRemote) > save);
  }
  std::filesystem::remove_all(saves);
  SoloIsland back(world, OnCpu, Encoding::kFloat32, saves, /*goes_on=*/true);
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
    SoloIsland killed(world, OnCpu, Encoding::kFloat32, saves);
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
  SoloIsland back(world, OnCpu, Encoding::kFloat32, saves, /*goes_on=*/true);
  Reconfigure command{kJob, 0, 1, IslandPlan()};
  command.resume = save;
  back.island().Run(command);
  REQUIRE(std::holds_alternative<CommandFailed>(back.events.last()));
  CHECK_FALSE(back.SetsUp(save).resumed);  // what is damaged is remembered
}

// Of two workers: stages, stages of two devices each, and replicas that own half of the optimizer's
// state each.
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
  const auto bring = leader.trainer->StageCarry();
  REQUIRE(bring.status().ToString() == "OK");
  REQUIRE(*bring != nullptr);
  const std::atomic<bool> cancelled = false;
  absl::Status status;
  std::thread brings([&] { status = (*bring)(cancelled); });
  leader.Step(1);
  leader.Step(2);
  LayerGate().Open();
  brings.join();
  REQUIRE(status.ToString() == "OK");
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
  const std::atomic<bool> cancelled = false;
  // A follower is late: the leader interrupts it and sets the island up again.
  gate.Close();
  const auto late = leader.trainer->CaptureDelta(command);
  REQUIRE(late.status().ToString() == "OK");
  absl::Status status;
  std::thread makes([&] { status = (*late)(cancelled); });
  gate.AwaitStall();
  leader.trainer->Interrupt("a member is lost");
  makes.join();
  CHECK(absl::IsAborted(status));
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
  const auto again = leader.trainer->CaptureDelta(command);
  REQUIRE(again.status().ToString() == "OK");
  CHECK_FALSE(outer("w2")->tag().captured);
  REQUIRE((*again)(cancelled).ToString() == "OK");
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
