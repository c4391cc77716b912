// Fixture of the tests of what the planner makes and engines run: a job, and a worker whose
// devices have been measured for it.

#ifndef ATOLL_TESTS_ISLAND_PLANNED_FIXTURE_H_
#define ATOLL_TESTS_ISLAND_PLANNED_FIXTURE_H_

#include <algorithm>
#include <catch2/catch.hpp>
#include <memory>
#include <utility>
#include <vector>

#include "coordinator/planning/auxiliary_memory.h"
#include "coordinator/planning/planning.h"
#include "kernels/cpu/cpu.h"
#include "tests/island/island_harness.h"
#include "worker/profiler/layer_profiler.h"

namespace atl::worker {

inline EngineJob PlannedJob(ModelFamily family, bool tied) {
  EngineJob job;
  job.model.family = family;
  job.model.vocab = 512;
  job.model.d_model = 64;
  job.model.layers = 9;
  job.model.heads = job.model.kv_heads = 4;
  job.model.ffn = 256;
  job.model.max_positions = job.sequence_length = 64;
  job.model.tied_head = tied;
  job.batch_sequences = 16;
  return job;
}

// Equal devices have equal times, however busy the machine is that they are measured on.
inline void GiveTimes(DeviceProfile& profile) {
  for (LayerCost& cost : profile.layers) {
    const int64_t whole_ns = cost.kind == LayerKind::kEmbedding ? 10'000
                             : cost.kind == LayerKind::kBlock   ? 100'000
                                                                : 50'000;
    const int64_t ns = 10'000 + whole_ns * cost.micro_batch_sequences / cost.tensor_parallel;
    cost.forward_ns = cost.weight_gradient_ns = ns;
    cost.input_gradient_ns = cost.kind == LayerKind::kEmbedding ? 0 : ns;
    cost.optimizer_ns = 10'000;
  }
}

// Devices of one worker, with the memory of their layers as the profiler finds it.
inline PlanRequest MakePlanRequest(const EngineJob& job, int devices,
                                   const std::vector<int>& tensor_parallel = {1}) {
  PlanRequest request;
  request.spec.name = "planned";
  request.spec.data.sequence_length = job.sequence_length;
  request.spec.data.documents = job.documents;
  request.spec.inner.batch_sequences = job.batch_sequences;
  request.spec.inner.micro_batch_sequences = 2;
  request.spec.inner.optimizer = job.optimizer.kind;
  request.spec.model = request.facts.model = ToSpec(job.model);
  if (const AdapterConfig& adapter = job.model.adapter; adapter.present()) {
    request.spec.adapter = {.kind = AdapterKind::kLora,
                            .rank = adapter.rank,
                            .alpha = adapter.alpha,
                            .targets = adapter.targets};
    if (adapter.base) {
      const bool nf4 = *adapter.base == WeightCode::kNf4;
      request.spec.adapter.base = nf4 ? AdapterBase::kNf4 : AdapterBase::kInt8;
    }
  }
  for (const LayerLayout& layout : MakeLayouts(job.model)) {
    request.facts.layers.push_back({layout.name, layout.size});
  }
  PlanMember member;
  member.member.worker = "w1";
  member.site = "a";
  std::vector<std::unique_ptr<Backend>> backends;
  std::vector<ProfiledDevice> profiled;
  for (int i = 0; i < devices; ++i) {
    member.devices.push_back({"cpu", int64_t{1} << 30, 1});
    backends.push_back(NewCpuBackend(1));
    profiled.push_back({absl::StrCat("w1/", i), "cpu", backends.back().get()});
  }
  ProfileOptions options;
  options.optimizer = job.optimizer;
  options.sequence_length = job.sequence_length;
  options.micro_batch_max = 2;
  options.runs = 1;
  options.tensor_parallel = tensor_parallel;
  auto profiles = ProfileLayers(profiled, job.model, options);
  REQUIRE(profiles.status().message() == "");
  member.profiles = *std::move(profiles);
  for (DeviceProfile& profile : member.profiles) GiveTimes(profile);
  request.members = {std::move(member)};
  return request;
}

// Each of them has so much, beside the host's copies of the model.
inline void GiveMemory(int64_t bytes, PlanRequest& request) {
  std::vector<DeviceInfo>& devices = request.members[0].devices;
  const int64_t copies = LeastOwnerBytes(request) / static_cast<int64_t>(devices.size());
  for (DeviceInfo& device : devices) device.memory_bytes = bytes + copies;
}

}  // namespace atl::worker

#endif  // ATOLL_TESTS_ISLAND_PLANNED_FIXTURE_H_
