// Fixture of the tests of islands of several workers: workers as objects in one process, over
// real sockets on loopback.

#ifndef ATOLL_TESTS_ISLAND_GROUP_FIXTURE_H_
#define ATOLL_TESTS_ISLAND_GROUP_FIXTURE_H_

#include <catch2/catch.hpp>
#include <condition_variable>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/match.h"
#include "common/model/tensor_layout.h"
#include "kernels/cpu/cpu.h"
#include "kernels/testing/fake_device.h"
#include "kernels/testing/fake_nccl.h"
#include "kernels/testing/gate.h"
#include "tests/catch/limits.h"
#include "tests/island/layouts.h"
#include "tests/island/single_device.h"
#include "tests/island/test_leader.h"
#include "worker/island/control/follower.h"
#include "worker/island/member/member.h"

namespace atl::worker {

inline constexpr int64_t kBatch = 8;
inline constexpr char kJob[] = "sea-1";

// Everything that trains: parameters and both moments, by layer.
using State = std::vector<std::vector<float>>;

struct World {
  World() {
    std::string name = (std::filesystem::temp_directory_path() / "group-XXXXXX").string();
    folder = mkdtemp(name.data());
    std::ofstream text(folder + "/text");
    for (int i = 0; i < 400; ++i) text << "the " << i * i << " waves of the sea, ";
    text.close();
    spec.name = "sea";
    spec.model.hidden = 16;
    spec.model.layers = 4;
    spec.model.heads = 4;
    spec.model.feed_forward = 32;
    spec.data.path = folder + "/text";
    spec.data.validation_fraction = 0.2;
    spec.data.sequence_length = 16;
    spec.inner.batch_sequences = kBatch;
    spec.layout.island = IslandScope::kAll;
  }
  ~World() { std::filesystem::remove_all(folder); }

  std::string folder;
  JobSpec spec;
  int64_t saves_bytes_max = 0;  // of each worker
  bool disks = false;           // each worker has a disk tier, which its restarts find again
  std::map<NodeId, testing::Gate*> gates;  // of workers' fake devices, instead of LayerGate
  std::function<void(const LocalDevice&)> on_device;  // called with each that is made
};

inline bool Says(absl::string_view text, absl::string_view part) {
  INFO(text);
  const bool says = absl::StrContains(text, part);
  CHECK(says);
  return says;
}

// The sequences of a step.
inline std::vector<PositionRange> Batch(int64_t step) {
  // Two ranges, as leases may be.
  return {{step * kBatch, step * kBatch + 3}, {step * kBatch + 3, (step + 1) * kBatch}};
}
inline double GetLearningRate(int64_t step) { return 1e-2 / static_cast<double>(1 + step % 3); }

// Copies of fake devices' layers from and to the host pass it.
inline testing::Gate& LayerGate() {
  static testing::Gate gate;
  return gate;
}

// Returns the devices of the workers in this run of the cases: $ATOLL_TEST_DEVICES.
enum class Devices {
  kHost,      // the CPU
  kFake,      // computes as the CPU does, in memory that the host cannot touch
  kFakeNccl,  // these, of one site, with NCCL between them
};
inline Devices DevicesOfRun() {
  static const Devices devices = [] {
    const char* name = std::getenv("ATOLL_TEST_DEVICES");
    if (name == nullptr) return Devices::kHost;
    const std::string_view given = name;
    REQUIRE((given == "fake" || given == "fake_nccl"));
    return given == "fake" ? Devices::kFake : Devices::kFakeNccl;
  }();
  return devices;
}

// Device `index` of a worker, with a gate of its own.
inline LocalDevice NewGatedDevice(int index, testing::Gate& gate) {
  if (DevicesOfRun() == Devices::kHost) return {index, NewCpuBackend(1), NewCpuBackend(1)};
  const testing::FakeDevice device(absl::StrCat("fake ", index), [] { return NewCpuBackend(1); });
  return {index,
          device.NewBackend(),
          device.NewBackend(),
          0,
          device.NewBackend(),
          device.NewBackend(),
          device.NewBackend([&gate] { gate.Pass(); })};
}

inline LocalDevice NewDevice(int index) { return NewGatedDevice(index, LayerGate()); }

inline bool HasNccl() { return DevicesOfRun() == Devices::kFakeNccl; }
inline std::string NcclVersion() { return HasNccl() ? "2.27.3" : ""; }
// This NCCL does not report that a member has failed.
inline testing::FakeNccl& Nccl() {
  static testing::FakeNccl nccl(/*reports_aborts=*/false);
  return nccl;
}

class TestWorker {
 public:
  TestWorker(const World& world, const NodeId& name, int devices = 1, EngineOptions engine = {},
             PeerLinkOptions link = {}) {
    GroupOptions options;
    options.link = std::move(link);
    options.link.name = name;
    options.link.incarnation = 1;
    options.engine = engine;
    options.device_name = "cpu";
    options.saves_bytes_max = world.saves_bytes_max;
    if (world.disks) options.saves_folder = absl::StrCat(world.folder, "/disk-", name);
    if (HasNccl()) {
      options.nccl_functions.new_id = [] { return Nccl().NewId(); };
      options.nccl_functions.join = [](Backend& backend, const NcclGroup& group) {
        return JoinNcclBy(Nccl(), backend, group);
      };
    }
    const auto own = world.gates.find(name);
    testing::Gate* const gate = own == world.gates.end() ? &LayerGate() : own->second;
    options.make_devices = [devices, gate, on_device = world.on_device] {
      std::vector<LocalDevice> all;
      for (int i = 0; i < devices; ++i) {
        all.push_back(NewGatedDevice(i, *gate));
        if (on_device != nullptr) on_device(all.back());
      }
      return all;
    };
    member = GroupMember::Create(std::move(options)).value();
    trainer = std::make_unique<TestLeader>(member.get());
    follower = std::make_unique<Follower>(member.get(), [this](int64_t plan, const std::string& d) {
      const std::lock_guard lock(mutex_);
      plan_ = plan;
      activity_ = d;
    });
    setenv("ATOLL_DATA_CACHE", (world.folder + "/cache").c_str(), 1);
    const auto facts = trainer->Prepare(kJob, world.spec);
    INFO(facts.status().ToString());
    REQUIRE(facts.ok());
    layers = facts->layers;
  }
  ~TestWorker() {
    follower.reset();
    trainer.reset();
  }
  IslandMember Address() const {
    return {member->name(), 1, member->endpoint(), "", HasNccl() ? "north" : "", NcclVersion()};
  }
  std::string activity() {
    const std::lock_guard lock(mutex_);
    return activity_;
  }

  // Returns the state of all layers, as the members' devices hold them.
  State Read() {
    Drain();
    State state;
    for (size_t l = 0; l < layers.size(); ++l) {
      const auto size = static_cast<size_t>(layers[l].elements);
      for (int i = 0; i < 3; ++i) state.emplace_back(size);
      ReadLayer(static_cast<int32_t>(l), {state[3 * l], state[3 * l + 1], state[3 * l + 2]});
    }
    return state;
  }
  double Step(int64_t step) {
    const auto loss = trainer->Step(Batch(step), GetLearningRate(step));
    INFO(loss.status().ToString());
    REQUIRE(loss.ok());
    REQUIRE(loss->tokens == kBatch * 16);
    return loss->loss;
  }

  // Waits until all others have taken the newest step, too.
  void Drain() { REQUIRE(trainer->Drain().ToString() == "OK"); }

  std::vector<LayerSize> layers;
  std::unique_ptr<GroupMember> member;
  std::unique_ptr<TestLeader> trainer;
  std::unique_ptr<Follower> follower;

 private:
  // Ranks that share a layer have a cut of it each, and its owners parts of that.
  void ReadLayer(int32_t layer, const ShardParts& out) {
    const LayerLayout& whole = member->job()->layouts[static_cast<size_t>(layer)];
    std::set<int32_t> ranks;
    for (const auto& [worker, held] : trainer->holdings()) {
      for (const HeldLayer& here : held) {
        if (here.shard.layer != layer || here.table_only) continue;
        if (!ranks.insert(here.shard.rank).second) continue;
        const absl::StatusOr<LayerLayout> layout = member->job()->GetLayerLayout(here.shard);
        REQUIRE(layout.ok());
        const OwnedParts cut(layout->size, kAllParts);
        for (const StateSource& source :
             SelectSources(trainer->holdings(), here.shard, kAllParts, member->name())) {
          REQUIRE(member->layers()
                      .GetShard(source.from, source.shard, source.elements,
                                SliceParts(cut.parts(), source.parts, source.elements))
                      .ToString() == "OK");
        }
        for (const auto& [part, from] : ToPartMap(cut.parts())) {
          if (here.shard.tensor_split_ratios.size() > 1) {
            JoinLayer(whole, *layout, from, ToPartMap(out).at(part));
          } else {
            std::copy(from.begin(), from.end(), ToPartMap(out).at(part).begin());
          }
        }
      }
    }
    REQUIRE(!ranks.empty());
  }

  std::mutex mutex_;
  int64_t plan_ = 0;      // guarded by mutex_
  std::string activity_;  // guarded by mutex_
};

class TestGroup {
 public:
  TestGroup(const World& world, int workers, int devices = 1, EngineOptions engine = {},
            PeerLinkOptions link = {}) {
    start_ = [&world, devices, engine, link](const NodeId& name) {
      return std::make_unique<TestWorker>(world, name, devices, engine, link);
    };
    for (int w = 1; w <= workers; ++w) Restart(absl::StrCat("w", w));
  }

  TestWorker& operator[](const NodeId& name) { return *workers_.at(name); }
  // It ends in the middle of whatever it does.
  void Kill(const NodeId& name) { workers_.erase(name); }
  void Restart(const NodeId& name) {
    Kill(name);
    workers_[name] = start_(name);
  }

  // The layout's plan for these workers, in place of w1, w2, ...; the first one leads.
  IslandPlan PlanFor(const IslandLayout& layout, const std::vector<NodeId>& names) {
    IslandPlan plan = MakePlan(layout);
    REQUIRE(plan.members.size() <= names.size());
    plan.number = ++number_;
    const auto renamed = [&](const std::string& device) {
      const int index = std::stoi(WorkerFromDevice(device).substr(1)) - 1;
      return absl::StrCat(names[static_cast<size_t>(index)], "/", IndexFromDevice(device));
    };
    for (PlanReplica& replica : plan.replicas) {
      for (PlanStage& stage : replica.stages) {
        for (std::string& device : stage.devices) device = renamed(device);
      }
    }
    for (PlanProgram& program : plan.programs) program.device = renamed(program.device);
    std::vector<IslandMember> members;
    for (const NodeId& name : names) {
      IslandMember& member = members.emplace_back(workers_.at(name)->Address());
      if (members.size() > plan.members.size()) continue;
      member.site = plan.members[members.size() - 1].site;
    }
    plan.members = std::move(members);
    return plan;
  }

  // All members have pulled these values of what they own.
  using Values = std::function<float(int32_t layer, int64_t element)>;
  void Pulled(const Values& values) {
    for (const auto& [name, worker] : workers_) {
      const std::shared_ptr<OuterState> outer = worker->member->outer_exchange().state();
      if (outer == nullptr) continue;
      LayerBuffers& pulled = *outer->pulled();
      for (size_t p = 0; p < pulled.size(); ++p) {
        const OuterRange& part = (*outer->parts())[p];
        for (size_t i = 0; i < pulled[p].size(); ++i) {
          pulled[p][i] = values(part.layer, part.range.begin + static_cast<int64_t>(i));
        }
      }
      // Copies come from their owners.
      for (const OuterRange& copy : outer->copies()) {
        const std::vector<float> nothing(static_cast<size_t>(copy.range.size()), -7.0f);
        REQUIRE(outer->Write(OuterKind::kPulled, copy.layer, copy.range, nothing).ok());
      }
    }
  }

  // Carries out the coordinator's orders: members follow, the leader configures. With `at_step_end`
  // the leader is the first to know.
  absl::StatusOr<Reconfigured> Order(const IslandPlan& plan, Generation generation = 1,
                                     bool at_step_end = false) {
    const auto notify_followers = [&] {
      for (size_t i = 1; i < plan.members.size(); ++i) {
        workers_.at(plan.members[i].worker)
            ->follower->Follow({kJob, generation, plan.number}, plan, at_step_end);
      }
    };
    TestWorker& leader = *workers_.at(plan.members[0].worker);
    if (!at_step_end) notify_followers();
    if (at_step_end) leader.trainer->when_drained = notify_followers;
    const auto taken = leader.trainer->Configure(kJob, generation, plan);
    leader.trainer->when_drained = nullptr;
    return taken;
  }
  // `from`, who leads, hands over to the plan's first member.
  absl::StatusOr<Reconfigured> RunHandover(const NodeId& from, Leadership kept,
                                           const IslandPlan& plan, Leadership* known) {
    workers_.at(from)->trainer->Keep(std::move(kept));
    for (size_t i = 1; i < plan.members.size(); ++i) {
      workers_.at(plan.members[i].worker)
          ->follower->Follow({kJob, 1, plan.number}, plan, /*at_step_end=*/true);
    }
    TestWorker& successor = *workers_.at(plan.members[0].worker);
    successor.follower->Unfollow("it is to lead");
    ATOLL_RETURN_IF_ERROR(successor.follower->AwaitFree(atl::testing::kHangLimit));
    auto taken = successor.trainer->Configure(kJob, 1, plan, from);
    if (taken.ok()) *known = taken->taken_over.value_or(Leadership());
    return taken;
  }
  Reconfigured Take(const IslandLayout& layout, const std::vector<NodeId>& names) {
    const auto taken = Order(PlanFor(layout, names));
    INFO(taken.status().ToString());
    REQUIRE(taken.ok());
    return *taken;
  }

 private:
  std::function<std::unique_ptr<TestWorker>(const NodeId&)> start_;
  std::map<NodeId, std::unique_ptr<TestWorker>> workers_;
  int64_t number_ = 0;
};

// The same job on one device.
struct SingleDeviceTrainer {
  explicit SingleDeviceTrainer(const World& world)
      : trainer(std::make_unique<SingleDevice>(NewCpuBackend(1))) {
    REQUIRE(trainer->Prepare(world.spec).ok());
    REQUIRE(trainer->InitialWeights().ok());
  }
  double Step(int64_t step) { return trainer->Step(Batch(step), GetLearningRate(step))->loss; }
  std::unique_ptr<SingleDevice> trainer;
};

inline IslandLayout Pipeline(const std::string& name, std::vector<int32_t> stages, int workers) {
  return {.name = name,
          .replicas = {{std::move(stages), /*micro_batches=*/4, /*micro_batch_sequences=*/2}},
          .workers = workers};
}
// Replicas that hold the whole model each.
inline IslandLayout Replicas(const std::string& name, std::vector<int32_t> sequences, int workers) {
  IslandLayout layout{.name = name, .workers = workers};
  for (int32_t n : sequences) layout.replicas.push_back({{6}, n, 1});
  return layout;
}

}  // namespace atl::worker

#endif  // ATOLL_TESTS_ISLAND_GROUP_FIXTURE_H_
