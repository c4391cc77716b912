// Plans where memory is short, and where devices that work together differ.

#include "coordinator/planning/plan_memory.h"

#include <algorithm>
#include <catch2/catch.hpp>

#include "common/model/outer_copies.h"
#include "coordinator/planning/predicted_step.h"
#include "coordinator/planning/testing/planning_fixture.h"

namespace atl {
namespace {

TEST_CASE("too little memory names the device and how much is missing") {
  PlanRequest request = MakePlanRequest(4, 8, {Worker("w1", 2, 1 << 20)});
  CHECK_THAT(Refusal(request), Catch::Contains("bytes"));
  request.spec.layout.stages = 2;
  CHECK_THAT(Refusal(request), Catch::Contains("Device \"w1/") && Catch::Contains("lacks"));
}

TEST_CASE("frozen_weights_take_their_bytes_alone_and_have_no_gradient_to_compute") {
  ModelConfig config{.vocab = 512,
                     .d_model = 64,
                     .layers = 2,
                     .heads = 4,
                     .kv_heads = 4,
                     .ffn = 256,
                     .max_positions = 32};
  constexpr ElementBytes kBf16 = {2, 4};
  const plan::Model whole = PlannerModel("whole", config, 32, kBf16);
  config.adapter = {.rank = 4, .alpha = 4, .targets = {kAllLinear}};
  const plan::Model adapted = PlannerModel("adapted", config, 32, kBf16);
  constexpr int64_t kTrained = 4 * (4 * (64 + 64) + 3 * (64 + 256));
  CHECK(adapted.parameters() == 2 * kTrained);
  for (size_t l = 0; l < whole.layers.size(); ++l) {
    const plan::Layer &before = whole.layers[l], &after = adapted.layers[l];
    CAPTURE(before.name);
    CHECK(after.frozen_bytes == 2 * before.parameters);
    const bool block = before.again_bytes > 0;
    CHECK(after.forward_flops - before.forward_flops == (block ? 2.0 * kTrained * 32 : 0));
    // W has attention and the adapter left.
    const double weights = block ? 4 * 64 * 64 + 3 * 64 * 256 : before.forward_flops / 64;
    CHECK(after.frozen_flops == Approx(2 * weights * 32));
  }
}

// Two devices whose layers need workspace. The search reserves nothing for it but the 6% that it
// keeps back for all that it does not know. Layers are not shared: nothing was measured of that.
PlanRequest WithWorkspace(int64_t memory, int64_t workspace) {
  PlanRequest request = MakePlanRequest(8, 8);
  request.spec.layout.tensor_parallel = 1;
  request.members = {Worker("w1", 2, memory)};
  for (int d = 0; d < 2; ++d) {
    DeviceProfile profile = Measured(absl::StrCat("w1/", d), 1);
    for (LayerCost& cost : profile.layers) {
      const int layer = cost.kind == LayerKind::kEmbedding ? 0
                        : cost.kind == LayerKind::kBlock   ? 1
                                                           : 9;
      cost.parameter_bytes = 16 * request.facts.layers[layer].elements;
      cost.workspace_bytes = workspace;
    }
    request.members[0].profiles.push_back(std::move(profile));
  }
  return request;
}

// With auxiliary memory.
int64_t MostNeeded(const PlanRequest& request, const IslandPlan& plan) {
  int64_t most = 0;
  for (const PlanProgram& program : plan.programs) {
    const MemoryLack need = *PredictProgramMemory(request, plan, program);
    most = std::max(most, need.takes_bytes + need.auxiliary_bytes);
  }
  return most;
}

TEST_CASE("resident_memory_is_that_of_devices_and_more_with_copies_in_memory") {
  PlanRequest request = MakePlanRequest(8, 8, {Worker("w1", 1), Worker("w2", 1)});
  request.spec.layout.stages = 2;
  request.spec.checkpoint.peer_copies = 0;
  IslandPlan plan = Planned(request);
  const NodeId worker = WorkerFromDevice(plan.programs[0].device);
  const auto resident = [&] {
    PredictMemory(request, &plan);
    const auto host = std::find_if(plan.hosts.begin(), plan.hosts.end(),
                                   [&](const PlanHost& h) { return h.worker == worker; });
    REQUIRE(host != plan.hosts.end());
    return host->bytes;
  };
  int64_t devices = 0;
  for (const PlanProgram& program : plan.programs) {
    if (WorkerFromDevice(program.device) == worker) devices += program.memory_peak_bytes;
  }
  const int64_t least = resident();
  const int64_t owned = MakeHostCopies(request.spec, plan, request.facts, worker).needed_bytes();
  CHECK(least > devices + owned);
  request.spec.checkpoint.peer_copies = 1;
  CHECK(resident() > least);
}

TEST_CASE("a layout that takes more memory than its search thought is not the end of the search") {
  constexpr int64_t kWorkspace = 64 << 20;
  const IslandPlan ample = Planned(WithWorkspace(kGiB, kWorkspace));
  const int64_t takes = MostNeeded(WithWorkspace(kGiB, kWorkspace), ample);
  REQUIRE(2 * (takes - kWorkspace) < takes);  // the search thinks that it fits in a byte less
  CHECK(ample.reason.find("searches") == std::string::npos);
  PlanRequest request = WithWorkspace(takes - 1, kWorkspace);
  request.spec.layout.optimizer_copies = 2;
  const IslandPlan plan = Planned(request);
  CHECK(MostMemory(plan) < takes);
  CHECK_THAT(plan.reason, Catch::Contains("found by 2 searches, with more memory kept back") &&
                              Catch::Contains(" lacks 1 B: it would take "));
  // Where nothing fits, the nearest miss is named.
  request = WithWorkspace(kGiB, kWorkspace);
  request.spec.layout.replicas = 2;
  request.spec.layout.optimizer_copies = 2;
  request.spec.inner.micro_batch_sequences = 4;
  const int64_t least = MostNeeded(request, Planned(request));
  PlanRequest refused = WithWorkspace(least - 4096, kWorkspace);
  refused.spec = request.spec;
  refused.spec.layout.recompute = Recompute::kNone;
  CHECK_THAT(Refusal(refused), Catch::Contains("w1/") && Catch::Contains(" lacks 4.0 KiB: ") &&
                                   Catch::Contains("lower inner.micro_batch_sequences"));
}

TEST_CASE(
    "where two copies of the optimizer's state do not fit, there is one, unless the job wants "
    "two") {
  constexpr int64_t kWorkspace = 64 << 20;
  PlanRequest request = WithWorkspace(kGiB, kWorkspace);
  request.spec.layout.replicas = 2;
  request.spec.layout.recompute = Recompute::kNone;
  request.spec.inner.micro_batch_sequences = 4;
  const IslandPlan two = Planned(request);
  CHECK(two.optimizer_copies == 2);
  PlanRequest tight = WithWorkspace(MostNeeded(request, two) - 4096, kWorkspace);
  tight.spec = request.spec;
  const IslandPlan one = Planned(tight);
  CHECK(one.optimizer_copies == 1);
  // Half of the moments: 8 bytes of an element.
  int64_t elements = 0;
  for (const LayerSize& layer : request.facts.layers) elements += layer.elements;
  CHECK(std::abs(MostMemory(two) - MostMemory(one) - 4 * elements) <= 8 * 64 * 10);
  tight.spec.layout.optimizer_copies = 2;
  CHECK(!PlanIsland(tight).ok());
}

TEST_CASE("a group of devices of which one is slow is planned, and reckoned, with that one") {
  PlanRequest request = MakePlanRequest(6, 8);
  request.spec.layout.tensor_parallel = 2;
  for (const char* name : {"w1", "w2"}) {
    PlanMember& member = request.members.emplace_back(Worker(name, 2));
    for (int d = 0; d < 2; ++d) {
      DeviceProfile profile = Measured(absl::StrCat(name, "/", d), 1);
      const size_t count = profile.layers.size();
      for (size_t i = 0; i < count; ++i) {
        profile.layers.push_back(profile.layers[i]);
        profile.layers.back().tensor_parallel = 2;
      }
      member.profiles.push_back(std::move(profile));
    }
  }
  Link(request, "w1", "w2", 0.1, 1e9);
  const IslandPlan even = Planned(request);
  CHECK(DevicesIn(even).size() == 4);
  CHECK(EstimateStepNs(request, even) == Approx(even.step_ns).epsilon(0.05));
  for (LayerCost& cost : request.members[0].profiles[1].layers) {
    cost.forward_ns *= 3;
    cost.input_gradient_ns *= 3;
    cost.weight_gradient_ns *= 3;
  }
  CHECK(EstimateStepNs(request, even) > 1.3 * even.step_ns);
  const IslandPlan uneven = Planned(request);
  CHECK(DevicesIn(uneven).size() == 4);
  CHECK(uneven.step_ns < EstimateStepNs(request, even));
}

}  // namespace
}  // namespace atl
