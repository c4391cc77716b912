// Auxiliary memory of plans, beyond what devices' backends count.

#include "coordinator/planning/auxiliary_memory.h"

#include <catch2/catch.hpp>
#include <string>

#include "common/model/outer_copies.h"
#include "coordinator/planning/plan_memory.h"
#include "coordinator/planning/testing/planning_fixture.h"

namespace atl {
namespace {

constexpr int64_t kMessage = int64_t{64} * 64 * 4;  // one sequence, in fp32

PlanRequest TwoWorkers() {
  PlanRequest request = MakePlanRequest(6, 8, {Worker("w1", 1), Worker("w2", 1)});
  request.spec.inner.micro_batch_sequences = 1;
  request.spec.layout.stages = 2;
  request.spec.layout.replicas = 1;
  request.spec.layout.schedule = "1f1b";
  return request;
}

PlanRequest OnGpus(int64_t host_memory) {
  PlanRequest request = TwoWorkers();
  for (PlanMember& member : request.members) {
    member.devices = {{"NVIDIA H200", kGiB, 1, "GPU-1", "bf16", ""}};
    member.devices[0].host_memory_bytes = host_memory;
  }
  return request;
}

int64_t Elements(const PlanRequest& request) {
  int64_t elements = 0;
  for (const LayerSize& layer : request.facts.layers) elements += layer.elements;
  return elements;
}

int64_t CountOwned(const PlanRequest& request, const IslandPlan& plan, const NodeId& worker) {
  return MakeHostCopies(request.spec, plan, request.facts, worker).needed_bytes();
}

TEST_CASE("both ends of a stage link hold messages for what is in flight, and one more") {
  PlanRequest request = TwoWorkers();
  const IslandPlan plan = Planned(request);
  for (const char* device : {"w1/0", "w2/0"}) {
    const AuxiliaryMemory auxiliary = EstimateAuxiliaryMemory(request, plan, device);
    CHECK(auxiliary.host_bytes == 3 * kMessage);  // 1F1B's first stage has two in flight
    CHECK(auxiliary.device_bytes == 0);
  }
  // GPipe has all of them in flight.
  request.spec.layout.schedule = "gpipe";
  CHECK(EstimateAuxiliaryMemory(request, Planned(request), "w1/0").host_bytes == 9 * kMessage);
  // Within a worker a message is there once.
  request.members = {Worker("w1", 2)};
  const IslandPlan here = Planned(request);
  CHECK(EstimateAuxiliaryMemory(request, here, "w1/0").host_bytes +
            EstimateAuxiliaryMemory(request, here, "w1/1").host_bytes ==
        9 * kMessage);
}

TEST_CASE("all-reduces with other workers take a gradient's bytes, but for one's own part") {
  PlanRequest request = TwoWorkers();
  request.spec.layout.stages = 1;
  request.spec.layout.replicas = 2;
  CHECK(EstimateAuxiliaryMemory(request, Planned(request), "w1/0").host_bytes ==
        Elements(request) * 4 / 2);
  request.members = {Worker("w1", 2)};
  CHECK(EstimateAuxiliaryMemory(request, Planned(request), "w1/0").host_bytes == 0);
}

TEST_CASE("a GPU has blocks for messages, and its host what goes by it") {
  PlanRequest request = OnGpus(0);
  const AuxiliaryMemory by_host = EstimateAuxiliaryMemory(request, Planned(request), "w2/0");
  CHECK(by_host.device_bytes == (4 + 4) * kMessage / 2);
  CHECK(by_host.host_bytes == 3 * kMessage / 2);
  for (PlanMember& member : request.members) {
    member.site = "north";
    member.devices[0].nccl = "2.27.3";
  }
  const AuxiliaryMemory straight = EstimateAuxiliaryMemory(request, Planned(request), "w2/0");
  CHECK(straight.device_bytes == (4 + 8) * kMessage / 2);
  CHECK(straight.host_bytes == 0);
}

TEST_CASE("a plan's devices need what is beside, too") {
  PlanRequest request = TwoWorkers();
  for (PlanMember& member : request.members) {
    member.profiles = {Measured(member.member.worker + "/0", 1)};
  }
  const IslandPlan plan = Planned(request);
  for (size_t w = 0; w < 2; ++w) {
    const PlanProgram* own = nullptr;
    for (const PlanProgram& program : plan.programs) {
      if (WorkerFromDevice(program.device) == request.members[w].member.worker) own = &program;
    }
    MemoryLack need = *PredictProgramMemory(request, plan, *own);
    const int64_t owned = CountOwned(request, plan, request.members[w].member.worker);
    CHECK(owned > 3 * 4 * Elements(request));
    CHECK(owned < 6 * 4 * Elements(request));
    CHECK(need.auxiliary_bytes == 3 * kMessage + owned);
    request.members[w].devices[0].memory_bytes = need.takes_bytes + need.auxiliary_bytes;
    CHECK(PredictProgramMemory(request, plan, *own)->lacks_bytes() == 0);
    request.members[w].devices[0].memory_bytes -= 1;
    need = *PredictProgramMemory(request, plan, *own);
    CHECK(need.lacks_bytes() == 1);
    CHECK_THAT(Text(need), Catch::Contains(" lacks 1 B: it would take ") &&
                               Catch::Contains(" of it for messages and copies of the model"));
  }
}

TEST_CASE("a_worker_whose_host_lacks_room_for_what_it_owns_and_saves_is_refused_by_name") {
  const int64_t copy = 4 * Elements(OnGpus(0));
  const int64_t messages = 3 * kMessage / 2;
  PlanRequest request = OnGpus(100 * copy);
  request.spec.schedule.validation_sequences = 0;
  const IslandPlan plan = Planned(request);
  const auto staged = [&](const NodeId& worker) {
    return MakeHostCopies(request.spec, plan, request.facts, worker).staging_bytes;
  };
  // Both keep copies of all that is exchanged, and save what each owns.
  CHECK(CountOwned(request, plan, "w1") + CountOwned(request, plan, "w2") ==
        (2 * 3 + 3) * copy + staged("w1") + staged("w2"));
  for (PlanMember& member : request.members) {
    member.devices[0].host_memory_bytes =
        messages + CountOwned(request, plan, member.member.worker);
  }
  Planned(request);
  request.members[1].devices[0].host_memory_bytes -= 1;
  CHECK_THAT(Refusal(request), Catch::StartsWith("worker w2: its host lacks 1 B: it has "));
  request.spec.schedule.checkpoint_every_steps = 0;
  for (PlanMember& member : request.members) {
    member.devices[0].host_memory_bytes = 3 * copy + messages + staged(member.member.worker);
  }
  Planned(request);
  request.spec.outer.push_encoding = Encoding::kInt8;
  CHECK_THAT(Refusal(request), Catch::StartsWith("worker w1: its host lacks "));
}

}  // namespace
}  // namespace atl
