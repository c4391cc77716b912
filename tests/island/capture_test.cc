// A delta is the parameters' at its capture, bit for bit, however late they are copied, and the
// devices compute meanwhile.

#include <atomic>
#include <catch2/catch.hpp>
#include <thread>

#include "tests/island/group_story.h"
#include "worker/runtime/island.h"
#include "worker/runtime/testing/island_events.h"

namespace atl::worker {
namespace {

using MakeDevice = std::function<LocalDevice(int index)>;

LocalDevice OnCpu(int index) { return {index, NewCpuBackend(1), NewCpuBackend(1)}; }

// A device that has no room for more than this.
MakeDevice Tight(int64_t memory_bytes) {
  return [memory_bytes](int index) {
    LocalDevice device = NewDevice(index);
    device.memory_bytes = memory_bytes;
    return device;
  };
}

// An island of one worker on one device, without daemons.
class Place {
 public:
  Place(const World& world, const MakeDevice& make_device, Encoding encoding) {
    GroupOptions options;
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
    island_ = std::make_unique<Island>(trainer_.get(), nullptr, IslandOptions(),
                                       Island::Hooks{[this](Event e) { events.Post(e); }});
    spec_ = world.spec;
    spec_.layout.island = IslandExtent::kWorker;
    spec_.outer.push_encoding = encoding;
    facts_ = Does<Prepared>(Prepare{kJob, spec_}).facts;
    Does<InitialWeightsMade>(MakeInitialWeights{});
    Does<DeltaCaptured>(CaptureDelta{{0, 1, 1, kNoVersion}, Encoding::kFloat32, {}});
    REQUIRE(events.AwaitReady().reason.empty());
    const LayerBuffers initial = island_->delta()->values;
    Adopt(initial, AdoptMode::kReplace);
  }
  ~Place() { island_.reset(); }

  template <typename T>
  T Does(const Action& command) {
    island_->ForgetInterrupts();
    island_->Run(command);
    const Event last = events.last();
    if (const auto* failed = std::get_if<CommandFailed>(&last)) FAIL(failed->reason);
    REQUIRE(std::holds_alternative<T>(last));
    return std::get<T>(last);
  }
  void Steps(int64_t begin, int64_t end) {
    for (int64_t step = begin; step < end; ++step) {
      Does<StepDone>(TrainStep{Batch(step), RateOf(step)});
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
  LayerBuffers Theta() {
    LayerBuffers theta;
    for (const LayerSize& layer : facts_.layers) {
      theta.emplace_back(layer.elements);
      REQUIRE(trainer_->GetParameters(static_cast<int>(theta.size()) - 1, theta.back()).ok());
    }
    return theta;
  }
  const Delta& delta() const { return *island_->delta(); }
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

TEST_CASE("pushes are the host's bit for bit, though copied only after two more steps") {
  const World world;
  const Encoding encoding = GENERATE(Encoding::kFloat32, Encoding::kInt4);
  Place host(world, OnCpu, encoding), device(world, NewDevice, encoding);
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
  Place host(world, OnCpu, Encoding::kFloat32);
  host.Steps(0, 3);
  host.Capture();
  REQUIRE(host.events.AwaitReady().reason.empty());
  const int64_t needed = host.memory.devices.at(0).peak_bytes;
  Place device(world, Tight(needed), Encoding::kFloat32);
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
  Place plain(world, NewDevice, Encoding::kInt8), interrupted(world, NewDevice, Encoding::kInt8);
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

TEST_CASE("members of an island copy their layers while it trains on") {
  const World world;
  TestGroup group(world, 2, 2);
  IslandLayout layout = Pipeline("two stages", {3, 3}, 2);
  layout.tensor_parallel = GENERATE(1, 2);
  group.Take(layout, {"w1", "w2"});
  TestWorker& leader = group["w1"];
  REQUIRE(leader.trainer->InitialWeights().ToString() == "OK");
  leader.Step(0);
  const auto read = [&] {
    LayerBuffers all;
    for (const LayerSize& layer : leader.layers) {
      all.emplace_back(layer.elements);
      REQUIRE(leader.trainer->GetParameters(static_cast<int>(all.size()) - 1, all.back()).ok());
    }
    return all;
  };
  const LayerBuffers now = read();
  LayerBuffers copied;
  for (const LayerSize& layer : leader.layers) copied.emplace_back(layer.elements);
  LayerGate().Close();
  const auto copy = leader.trainer->CopyParameters(&copied);
  REQUIRE(copy.status().ToString() == "OK");
  const std::atomic<bool> cancelled = false;
  absl::Status status;
  std::thread copies([&] { status = (*copy)(cancelled); });
  leader.Step(1);
  leader.Step(2);
  LayerGate().Open();
  copies.join();
  REQUIRE(status.ToString() == "OK");
  REQUIRE(copied == now);
  REQUIRE(read() != now);
}

}  // namespace
}  // namespace atl::worker
