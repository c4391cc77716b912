// Counts what a step and a round of an island of eight devices ask of hosts, buses and devices:
// launches, synchronisations, and bytes that cross each path. Two replicas of four stages, devices
// of tests (kernels/testing/fake_device.h) with NCCL's stand-in, the product's leader, member,
// engine and transports. Counts do not depend on the machine.

#include <CLI/CLI.hpp>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "kernels/cpu/cpu.h"
#include "kernels/testing/fake_device.h"
#include "kernels/testing/fake_nccl.h"
#include "tests/island/layouts.h"
#include "tests/island/test_leader.h"
#include "worker/island/member/member.h"

namespace atl::worker {
namespace {

constexpr int kReplicas = 2, kStages = 4, kDevices = kReplicas * kStages;
constexpr char kJob[] = "paths-1";

struct Options {
  int64_t layers = 8, hidden = 64, heads = 4, sequence_length = 64;
  int32_t micro_batches = 8;
  int64_t sequences = 1;  // of a micro-batch
  int copies = -1;        // of the optimizer's state; see IslandPlan. -1: first 0, then 1
  int steps = 4;          // that are counted
};

using Counts = testing::FakeCounts;

Counts Combine(const Counts& a, const Counts& b, int sign) {
  return {a.launches + sign * b.launches,
          a.synchronisations + sign * b.synchronisations,
          a.to_host_bytes + sign * b.to_host_bytes,
          a.to_device_bytes + sign * b.to_device_bytes,
          a.peer_bytes + sign * b.peer_bytes,
          a.collectives + sign * b.collectives,
          a.collective_bytes + sign * b.collective_bytes};
}

// A worker with these devices, which trains alone.
class Island {
 public:
  explicit Island(const Options& options) : options_(options) {
    std::string name = (std::filesystem::temp_directory_path() / "paths-XXXXXX").string();
    folder_ = mkdtemp(name.data());
    std::ofstream text(folder_ + "/text");
    for (int i = 0; i < 20'000; ++i) text << "the " << i * i << " waves of the sea, ";
    text.close();
    GroupOptions group;
    group.link.name = "w1";
    group.link.incarnation = 1;
    group.make_devices = [this] { return NewDevices(); };
    group.nccl_functions.new_id = [this] { return nccl_.NewId(); };
    group.nccl_functions.join = [this](Backend& backend, const NcclGroup& of) {
      return JoinNcclBy(nccl_, backend, of);
    };
    auto member = GroupMember::Create(std::move(group));
    ATOLL_CHECK(member.ok(), member.status().ToString());
    member_ = *std::move(member);
    leader_ = std::make_unique<TestLeader>(member_.get());
    const auto facts = leader_->Prepare(kJob, Spec());
    ATOLL_CHECK(facts.ok(), facts.status().ToString());
    for (size_t l = 0; l < facts->layers.size(); ++l) {
      const auto layer = static_cast<int32_t>(l);
      shards_.push_back({layer, layer, 0, facts->layers[l].elements});
      elements_ += facts->layers[l].elements;
    }
    const auto configured = leader_->Configure(kJob, 1, Plan());
    ATOLL_CHECK(configured.ok(), configured.status().ToString());
    Check(leader_->InitialWeights());
    Captures(Encoding::kFloat32);
    *leader_->outer()->pulled() = leader_->outer()->delta()->values;
    Adopts(AdoptMode::kReplace);
  }
  ~Island() {
    leader_.reset();
    member_.reset();
    std::filesystem::remove_all(folder_);
  }

  int64_t elements() const { return elements_; }

  void Step() {
    const int64_t batch = Batch();
    Check(leader_->Step({{position_, position_ + batch}}, 1e-3).status());
    position_ += batch;
  }
  // The parameters, to where they are pushed from.
  void Captures(Encoding encoding) {
    Check(leader_->CaptureDelta({{0, 1, 1, version_}, encoding, shards_}));
    const DeltaReady ready = leader_->events.AwaitReady();
    ATOLL_CHECK(ready.ok, ready.reason);
  }
  void Adopts(AdoptMode mode) {
    if (version_ != kNoVersion) *leader_->outer()->pulled() = *leader_->outer()->base();
    version_ = version_ == kNoVersion ? 0 : version_ + 1;
    Check(leader_->AdoptPulled({version_, mode}));
  }

  // By what the backend is for, of all devices.
  std::map<std::string, Counts> Read() const {
    std::map<std::string, Counts> counts;
    for (const auto& [role, backend] : backends_) {
      counts[role] = Combine(counts[role], testing::GetFakeCounts(*backend), 1);
    }
    return counts;
  }

 private:
  static void Check(const absl::Status& status) { ATOLL_CHECK(status.ok(), status.ToString()); }
  int64_t Batch() const { return kReplicas * options_.micro_batches * options_.sequences; }

  std::vector<LocalDevice> NewDevices() {
    std::vector<LocalDevice> devices;
    backends_.clear();
    for (int index = 0; index < kDevices; ++index) {
      const testing::FakeDevice device(absl::StrCat("fake ", index),
                                       [] { return NewCpuBackend(1); });
      const auto make = [&](const char* role) {
        auto backend = device.NewBackend();
        backends_.emplace_back(role, backend.get());
        return backend;
      };
      LocalDevice& made = devices.emplace_back();
      made.index = index;
      made.compute = make("compute");
      made.communication = make("gradients");
      made.sending = make("messages out");
      made.receiving = make("messages in");
      made.staging = make("layers");
    }
    return devices;
  }

  JobSpec Spec() const {
    JobSpec spec;
    spec.name = "paths";
    spec.model.hidden = options_.hidden;
    spec.model.layers = options_.layers;
    spec.model.heads = options_.heads;
    spec.model.feed_forward = 4 * options_.hidden;
    spec.data.path = folder_ + "/text";
    spec.data.sequence_length = options_.sequence_length;
    spec.inner.batch_sequences = Batch();
    spec.layout.island = IslandScope::kAll;
    spec.outer.push_encoding = Encoding::kInt4;
    return spec;
  }

  // The embedding with the first stage's blocks, the head with the last one's.
  IslandPlan Plan() const {
    ReplicaSpec replica{
        std::vector<int32_t>(kStages, static_cast<int32_t>(options_.layers) / kStages),
        options_.micro_batches, options_.sequences};
    ++replica.stage_layers.front();
    ++replica.stage_layers.back();
    IslandLayout layout;
    layout.replicas.assign(kReplicas, replica);
    layout.optimizer_copies = options_.copies;
    IslandPlan plan = MakePlan(layout);
    plan.members = {{"w1", 1, member_->endpoint(), "", "site", "2.27.3"}};
    return plan;
  }

  const Options options_;
  std::string folder_;
  testing::FakeNccl nccl_{/*reports_aborts=*/false};
  std::vector<std::pair<std::string, const Backend*>> backends_;
  std::vector<ShardPlacement> shards_;
  int64_t elements_ = 0, position_ = 0;
  Version version_ = kNoVersion;
  std::unique_ptr<GroupMember> member_;
  std::unique_ptr<TestLeader> leader_;
};

void Print(const char* what, const std::map<std::string, Counts>& before,
           const std::map<std::string, Counts>& after, int times) {
  std::printf("\n%s, all devices\n%-14s %9s %9s %12s %12s %12s %9s %12s\n", what, "stream",
              "launches", "host waits", "to host B", "to device B", "to peer B", "calls", "NCCL B");
  for (const auto& [role, counts] : after) {
    const Counts c = Combine(counts, before.at(role), -1);
    const auto each = [&](int64_t n) { return static_cast<double>(n) / times; };
    std::printf("%-14s %9.1f %9.1f %12.0f %12.0f %12.0f %9.1f %12.0f\n", role.c_str(),
                each(c.launches), each(c.synchronisations), each(c.to_host_bytes),
                each(c.to_device_bytes), each(c.peer_bytes), each(c.collectives),
                each(c.collective_bytes));
  }
}

void PrintFigure(const char* name, double value, const char* unit, double most) {
  std::printf("FIGURE %s %.4g %s goal <=%.4g %s\n", name, value, unit, most,
              value <= most ? "ok" : "short");
}

void Run(const Options& options) {
  Island island(options);
  const auto count = [&](const char* what, int times, const std::function<void()>& work) {
    const auto before = island.Read();
    for (int i = 0; i < times; ++i) work();
    const auto after = island.Read();
    Print(what, before, after, times);
    std::map<std::string, Counts> counted;
    for (const auto& [role, counts] : after) counted[role] = Combine(counts, before.at(role), -1);
    return counted;
  };
  island.Step();  // allocates
  std::printf(
      "\n%d replicas of %d stages, %s, %lld elements, %d micro-batches of %lld x %lld tokens\n",
      kReplicas, kStages, options.copies > 0 ? "each with its part of the optimizer" : "alike",
      static_cast<long long>(island.elements()), options.micro_batches,
      static_cast<long long>(options.sequences), static_cast<long long>(options.sequence_length));
  auto step = count("A step", options.steps, [&] { island.Step(); });
  for (const Encoding encoding : {Encoding::kFloat32, Encoding::kInt4}) {
    const std::string name = encoding == Encoding::kFloat32 ? "fp32" : "int4";
    count(absl::StrCat("A pseudo-gradient in ", name).c_str(), 1,
          [&] { island.Captures(encoding); });
    count("A version that is carried over", 1, [&] { island.Adopts(AdoptMode::kCarry); });
    island.Step();
  }
  count("A version that replaces the parameters", 1, [&] { island.Adopts(AdoptMode::kReplace); });
  const double devices_steps = kDevices * options.steps;
  const Counts all = Combine(step["compute"], step["gradients"], 1);
  const char* kind = options.copies > 0 ? "sharded" : "alike";
  PrintFigure(absl::StrCat("paths.", kind, ".host_waits_a_step").c_str(),
              static_cast<double>(all.synchronisations) / devices_steps, "of a device", 1);
  // A gradient's, and where replicas share the optimizer a parameter's.
  PrintFigure(absl::StrCat("paths.", kind, ".nccl_bytes_a_parameter").c_str(),
              static_cast<double>(all.collective_bytes) /
                  static_cast<double>(kReplicas * options.steps * island.elements()),
              "bytes of a replica", options.copies > 0 ? 8 : 4);
  PrintFigure(absl::StrCat("paths.", kind, ".host_bytes_a_step").c_str(),
              static_cast<double>(all.to_host_bytes) / devices_steps, "of a device",
              /*loss and a norm a layer=*/1024);
  std::printf(
      "%.3f launches for a block's F, B, W and its share of the step\n",
      static_cast<double>(step["compute"].launches) /
          (devices_steps * options.micro_batches * static_cast<double>(options.layers) / kStages));
}

}  // namespace
}  // namespace atl::worker

int main(int argc, char** argv) {
  CLI::App app("Counts of a step and a round of an island of eight devices.", "paths");
  atl::worker::Options options;
  app.add_option("--layers", options.layers, "blocks; a multiple of 4")->capture_default_str();
  app.add_option("--hidden", options.hidden)->capture_default_str();
  app.add_option("--heads", options.heads)->capture_default_str();
  app.add_option("--sequence-length", options.sequence_length)->capture_default_str();
  app.add_option("--micro-batches", options.micro_batches)->capture_default_str();
  app.add_option("--sequences", options.sequences, "of a micro-batch")->capture_default_str();
  app.add_option("--copies", options.copies, "of the optimizer's state")->capture_default_str();
  app.add_option("--steps", options.steps, "that are counted")->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  if (options.layers < 4 || options.layers % 4 != 0) {
    std::fprintf(stderr, "paths: --layers %lld: must be a multiple of 4\n",
                 static_cast<long long>(options.layers));
    return 2;
  }
  for (const int copies : {0, 1}) {
    atl::worker::Options each = options;
    if (each.copies < 0) each.copies = copies;
    atl::worker::Run(each);
    if (options.copies >= 0) break;
  }
}
