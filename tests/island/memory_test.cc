// What a plan reserves on a device is what the device takes, at most.

#include <catch2/catch.hpp>

#include "coordinator/planning.h"
#include "kernels/cpu/cpu.h"
#include "tests/island/island_harness.h"
#include "worker/profiler/layer_profiler.h"

namespace atl::worker {
namespace {

constexpr int kDevices = 4;

EngineJob Job(bool tied) {
  EngineJob job;
  job.model.family = ModelFamily::kGpt2;
  job.model.vocab = 512;
  job.model.d_model = 64;
  job.model.layers = 6;
  job.model.heads = job.model.kv_heads = 4;
  job.model.ffn = 256;
  job.model.max_positions = job.sequence_length = 64;
  job.model.tied_head = tied;
  job.batch_sequences = 16;
  return job;
}

// Four devices of one worker, with the memory of their layers as the profiler finds it.
PlanRequest Request(const EngineJob& job) {
  PlanRequest request;
  request.spec.name = "memory";
  request.spec.data.sequence_length = job.sequence_length;
  request.spec.inner.batch_sequences = job.batch_sequences;
  request.spec.inner.micro_batch_sequences = 2;
  ModelSpec& model = request.spec.model;
  model.family = job.model.family;
  model.vocabulary = job.model.vocab;
  model.hidden = job.model.d_model;
  model.layers = job.model.layers;
  model.heads = model.key_value_heads = job.model.heads;
  model.feed_forward = job.model.ffn;
  model.tied_head = job.model.tied_head;
  request.facts.model = model;
  for (const LayerLayout& layout : MakeLayouts(job.model)) {
    request.facts.layers.push_back({layout.name, layout.size});
  }
  PlanMember member;
  member.member.worker = "w1";
  member.site = "a";
  std::vector<std::unique_ptr<Backend>> backends;
  std::vector<ProfiledDevice> devices;
  for (int i = 0; i < kDevices; ++i) {
    member.devices.push_back({"cpu", int64_t{1} << 30, 1});
    backends.push_back(NewCpuBackend(1));
    devices.push_back({absl::StrCat("w1/", i), "cpu", backends.back().get()});
  }
  ProfileOptions options;
  options.sequence_length = job.sequence_length;
  options.micro_batch_max = 2;
  options.runs = 1;
  member.profiles = *ProfileLayers(devices, job.model, options);
  request.members = {std::move(member)};
  return request;
}

TEST_CASE("a device takes no more memory than its plan says") {
  for (const bool tied : {false, true}) {
    const EngineJob job = Job(tied);
    PlanRequest request = Request(job);
    for (const char* schedule : {"gpipe", "1f1b", "zb-h1", "zb-2p", "compact-zb"}) {
      for (const bool recompute : {false, true}) {
        request.spec.layout.stages = kDevices;
        request.spec.layout.schedule = schedule;
        request.spec.layout.recompute = recompute;
        const auto plan = PlanIsland(request);
        CAPTURE(tied, schedule, recompute, plan.status().message());
        REQUIRE(plan.ok());
        TestIsland island(job, *plan, {});
        for (const DeviceMemory& memory : island.engine(0).Memory()) {
          CAPTURE(memory.device, memory.state_bytes, memory.activation_bytes,
                  memory.predicted_bytes, memory.scratch_bytes);
          CHECK(memory.state_bytes + memory.activation_bytes <= memory.predicted_bytes);
        }
      }
    }
  }
}

}  // namespace
}  // namespace atl::worker
