#include "bench/island/emulated_island.h"

#include <algorithm>
#include <atomic>
#include <thread>

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/event_loop.h"
#include "common/model/layout.h"
#include "kernels/cpu/cpu.h"
#include "worker/pipeline/utilisation.h"

namespace atl::bench {
namespace {

constexpr int64_t kTokens = 512;
constexpr int64_t kWidth = 64;
constexpr int64_t kVocabulary = 64;
constexpr Duration kTimeout = std::chrono::seconds(30);

ModelSpec Shape(const Task& task) {
  ModelSpec model;
  model.family = ModelFamily::kGpt2;
  model.vocabulary = kVocabulary;
  model.hidden = kWidth;
  model.layers = task.blocks;
  model.heads = model.key_value_heads = 4;
  model.feed_forward = 4 * kWidth;
  return model;
}

ModelConfig Config(const Task& task) { return ModelConfigFromSpec(Shape(task), kTokens).value(); }

Duration GetEmulatedDuration(const Task& task, double speed, LayerKind layer, PlanOpKind kind,
                             int64_t rows) {
  const worker::Emulation device = worker::EmulatedBlocks(FromSeconds(Seconds(task.block) / speed));
  return device.duration("", layer, kind, rows);
}

LayerKind GetLayerKind(const Task& task, int32_t layer) {
  if (layer == 0) return LayerKind::kEmbedding;
  return layer > task.blocks ? LayerKind::kHead : LayerKind::kBlock;
}

int WorkerIndex(const std::string& device) { return std::stoi(WorkerFromDevice(device).substr(1)); }

DeviceProfile MakeProfile(const Task& task, const std::string& device, double speed) {
  DeviceProfile profile{device, "emulated", "", 0, {}};
  const LayerKind kinds[] = {LayerKind::kEmbedding, LayerKind::kBlock, LayerKind::kHead};
  for (int rows = 1; rows <= 4; rows *= 2) {
    for (const LayerKind kind : kinds) {
      const auto ns = [&](PlanOpKind op) {
        return std::chrono::nanoseconds(GetEmulatedDuration(task, speed, kind, op, rows)).count();
      };
      LayerCost cost;
      cost.kind = kind;
      cost.micro_batch_sequences = rows;
      cost.forward_ns = ns(PlanOpKind::kForward);
      cost.input_gradient_ns = ns(PlanOpKind::kInputGradient);
      cost.weight_gradient_ns = ns(PlanOpKind::kWeightGradient);
      cost.output_bytes = rows * kTokens * kWidth * 4;
      cost.stash_bytes = 20 * cost.output_bytes;
      profile.layers.push_back(cost);
    }
  }
  return profile;
}

LinkLookup MakeLinkLookup(const IslandSetting& setting) {
  return [setting](const std::string& from, const std::string& to) -> SharedLink {
    const std::string& a = setting.sites[WorkerIndex(from)];
    const std::string& b = setting.sites[WorkerIndex(to)];
    return a == b ? SharedLink{} : SharedLink{absl::StrCat(a, ">", b), setting.link};
  };
}

}  // namespace

PlanRequest MakePlanRequest(const IslandSetting& setting, const Task& task) {
  PlanRequest request;
  request.spec.name = "emulated";
  request.spec.model = request.facts.model = Shape(task);
  request.spec.data.sequence_length = kTokens;
  request.spec.inner.batch_sequences = task.batch;
  request.spec.inner.micro_batch_sequences = 1;
  for (const LayerLayout& layout : MakeLayouts(Config(task))) {
    request.facts.layers.push_back({layout.name, layout.size});
  }
  for (size_t w = 0; w < setting.sites.size(); ++w) {
    PlanMember member;
    const std::string name = absl::StrCat("w", w);
    member.member = {name, 1, "", ""};
    member.site = setting.sites[w];
    member.devices = {{"emulated", int64_t{8} << 30, 1, "", "fp32"}};
    member.profiles = {MakeProfile(task, absl::StrCat(name, "/0"), setting.speeds[w])};
    request.members.push_back(std::move(member));
    for (size_t other = 0; other < setting.sites.size(); ++other) {
      if (other == w) continue;
      const bool near = setting.sites[other] == setting.sites[w];
      const Link link = near ? Link{20e-6, 5e9} : setting.link;
      request.links.push_back({name, absl::StrCat("w", other),
                               static_cast<int64_t>(link.latency_s * 1e9), link.bytes_per_s, 0,
                               20});
    }
  }
  return request;
}

double WorkSeconds(const IslandSetting& setting, const Task& task, const IslandPlan& plan) {
  double seconds = 0;
  for (const PlanReplica& replica : plan.replicas) {
    for (const PlanStage& stage : replica.stages) {
      const double speed = setting.speeds[WorkerIndex(stage.devices[0])];
      for (int32_t l = stage.first_layer; l < stage.first_layer + stage.layers; ++l) {
        for (const PlanOpKind kind :
             {PlanOpKind::kForward, PlanOpKind::kInputGradient, PlanOpKind::kWeightGradient}) {
          seconds += replica.micro_batches *
                     Seconds(GetEmulatedDuration(task, speed, GetLayerKind(task, l), kind,
                                                 replica.micro_batch_sequences));
        }
      }
    }
  }
  return seconds;
}

EmulatedIsland::EmulatedIsland(const IslandSetting& setting, const Task& task,
                               const IslandPlan& plan)
    : task_(task),
      transport_(MakeLinkLookup(setting), int64_t{1} << 30),
      communicators_(std::make_unique<worker::LocalCommunicators>(kTimeout)) {
  transport_.UseSendOrder(plan);
  worker::EngineOptions options;
  options.message_timeout = kTimeout;
  options.emulation.only = true;
  options.emulation.duration = [task, speeds = setting.speeds](const std::string& device,
                                                               LayerKind layer, PlanOpKind kind,
                                                               int64_t rows) {
    return GetEmulatedDuration(task, speeds[WorkerIndex(device)], layer, kind, rows);
  };
  worker::EngineJob job;
  job.model = Config(task);
  job.sequence_length = kTokens;
  job.batch_sequences = task.batch;
  for (const IslandMember& member : plan.members) {
    std::vector<worker::LocalDevice> devices;
    devices.push_back({0, NewCpuBackend(1), NewCpuBackend(1)});
    engines_.push_back(
        std::make_unique<worker::Engine>(member.worker, std::move(devices), options));
  }
  std::vector<std::thread> threads;
  for (const auto& engine : engines_) {
    threads.emplace_back([&] {
      absl::Status status = engine->Configure(job, plan, &transport_, communicators_.get());
      ATOLL_CHECK(status.ok(), status.ToString());
      for (const HeldLayer& held : engine->Held()) {
        const std::vector<float> zeros(static_cast<size_t>(held.elements));
        status = engine->SetLayer(held.shard, worker::LayerPart::kParameters, zeros);
        ATOLL_CHECK(status.ok(), status.ToString());
      }
      status = engine->SetOptimizerSteps(0);
      ATOLL_CHECK(status.ok(), status.ToString());
    });
  }
  for (std::thread& thread : threads) thread.join();
}

EmulatedIsland::~EmulatedIsland() = default;

Measured EmulatedIsland::Step() {
  const worker::StepRequest request{++number_, task_.batch, 1e-3};
  std::vector<worker::StepOutcome> outcomes(engines_.size());
  std::vector<std::thread> threads;
  // The step is timed as the leader sees it: the others learn of the last device's end while its
  // next step begins.
  const Instant start = SteadyNow();
  Instant end = start;
  for (size_t e = 0; e < engines_.size(); ++e) {
    threads.emplace_back([&, e] {
      auto outcome = engines_[e]->Step(request, [](int64_t, std::span<int32_t> tokens) {
        std::fill(tokens.begin(), tokens.end(), 0);
        return absl::OkStatus();
      });
      ATOLL_CHECK(outcome.ok(), outcome.status().ToString());
      if (e == 0) end = SteadyNow();
      outcomes[e] = *std::move(outcome);
    });
  }
  for (std::thread& thread : threads) thread.join();
  Measured measured;
  measured.step_s = Seconds(end - start);
  double busy = 0;
  for (const worker::StepOutcome& outcome : outcomes) {
    for (const worker::DeviceStep& device : outcome.devices)
      busy += Seconds(worker::ComputeTime(device));
  }
  measured.bubble = 1 - busy / (static_cast<double>(engines_.size()) * measured.step_s);
  return measured;
}

}  // namespace atl::bench
