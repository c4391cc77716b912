// What plans take beside what devices' backends count.

#include "coordinator/planning/auxiliary_memory.h"

#include <catch2/catch.hpp>
#include <string>

#include "coordinator/planning/plan_memory.h"
#include "coordinator/planning/planning_fixture.h"

namespace atl {
namespace {

constexpr int64_t kMessage = int64_t{64} * 64 * 4;  // one sequence, in fp32

PlanRequest TwoWorkers() {
  PlanRequest request = JobOf(6, 8);
  request.members = {Worker("w1", 1), Worker("w2", 1)};
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

TEST_CASE("both ends of a boundary hold messages for what is in flight, and one more") {
  PlanRequest request = TwoWorkers();
  const IslandPlan plan = Planned(request);
  for (const char* device : {"w1/0", "w2/0"}) {
    const BesideMemory beside = BesideOf(request, plan, device);
    CHECK(beside.host_bytes == 3 * kMessage);  // 1F1B's first stage has two in flight
    CHECK(beside.device_bytes == 0);
  }
  // GPipe has all of them in flight.
  request.spec.layout.schedule = "gpipe";
  CHECK(BesideOf(request, Planned(request), "w1/0").host_bytes == 9 * kMessage);
  // Within a worker a message is there once.
  request.members = {Worker("w1", 2)};
  const IslandPlan here = Planned(request);
  CHECK(BesideOf(request, here, "w1/0").host_bytes + BesideOf(request, here, "w1/1").host_bytes ==
        9 * kMessage);
}

TEST_CASE("sums with other workers take a gradient's bytes, but for one's own part") {
  PlanRequest request = TwoWorkers();
  request.spec.layout.stages = 1;
  request.spec.layout.replicas = 2;
  CHECK(BesideOf(request, Planned(request), "w1/0").host_bytes == Elements(request) * 4 / 2);
  request.members = {Worker("w1", 2)};
  CHECK(BesideOf(request, Planned(request), "w1/0").host_bytes == 0);
}

TEST_CASE("a GPU has blocks for messages, and its host what goes by it") {
  PlanRequest request = OnGpus(0);
  const BesideMemory by_host = BesideOf(request, Planned(request), "w2/0");
  CHECK(by_host.device_bytes == (4 + 4) * kMessage / 2);
  CHECK(by_host.host_bytes == 3 * kMessage / 2);
  for (PlanMember& member : request.members) {
    member.site = "north";
    member.devices[0].nccl = "2.27.3";
  }
  const BesideMemory straight = BesideOf(request, Planned(request), "w2/0");
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
      if (WorkerOfDevice(program.device) == request.members[w].member.worker) own = &program;
    }
    MemoryLack need = *NeedOf(request, plan, *own);
    CHECK(need.beside_bytes == 3 * kMessage + (w == 0 ? 7 : 3) * 4 * Elements(request));
    request.members[w].devices[0].memory_bytes = need.takes_bytes + need.beside_bytes;
    CHECK(NeedOf(request, plan, *own)->lacks_bytes() == 0);
    request.members[w].devices[0].memory_bytes -= 1;
    need = *NeedOf(request, plan, *own);
    CHECK(need.lacks_bytes() == 1);
    CHECK_THAT(Text(need), Catch::Contains(" lacks 1 B: it would take ") &&
                               Catch::Contains(" of it for messages and copies of the model"));
  }
}

TEST_CASE("a worker whose host has no room for copies of the model is refused by name") {
  const int64_t copy = 4 * Elements(OnGpus(0));
  const int64_t messages = 3 * kMessage / 2;
  Planned(OnGpus(7 * copy + messages));
  CHECK_THAT(Refusal(OnGpus(7 * copy + messages - 1)),
             Catch::StartsWith("worker w1: its host lacks 1 B: it has ") &&
                 Catch::Contains("the local checkpoint, which it writes since it leads") &&
                 Catch::Contains("of an island's workers the one with most leads"));
  CHECK(RoomierLeader(OnGpus(1)) == "");  // all are alike
  PlanRequest other = OnGpus(7 * copy + messages - 1);
  other.members[1].devices[0].host_memory_bytes = 7 * copy + messages;
  CHECK(RoomierLeader(other) == "w2");
  std::swap(other.members[0], other.members[1]);
  CHECK(RoomierLeader(other) == "");
  Planned(other);
  // Who follows keeps what it owns, and a copy of what the other does.
  PlanRequest request = OnGpus(7 * copy + messages);
  request.members[1].devices[0].host_memory_bytes = 3 * copy + messages;
  Planned(request);
  request.members[1].devices[0].host_memory_bytes -= 1;
  CHECK_THAT(Refusal(request), Catch::StartsWith("worker w2: its host lacks 1 B"));
  request.spec.schedule.checkpoint_every_steps = 0;
  request.members[0].devices[0].host_memory_bytes = 3 * copy + messages;
  request.members[1].devices[0].host_memory_bytes = 3 * copy + messages;
  Planned(request);
  request.spec.outer.push_encoding = Encoding::kInt8;
  CHECK_THAT(Refusal(request), Catch::StartsWith("worker w1: its host lacks "));
}

}  // namespace
}  // namespace atl
