// Every schedule that a job may name, on one to four devices, gives the losses, gradients and
// weights of one device.

#include <catch2/catch.hpp>

#include "coordinator/simulator/search.h"
#include "tests/island/exactness.h"

namespace atl::worker {
namespace {

constexpr int kDevices = 4;

// One stage on each device, of a model of 4 blocks.
IslandLayout OneStageEach(const std::string& schedule, int devices) {
  const std::vector<int32_t> cuts[kDevices] = {{6}, {2, 4}, {3, 2, 1}, {1, 2, 2, 1}};
  return Pipeline(schedule, cuts[devices - 1], devices > 2 ? 6 : 4);
}

// Two stages on each device, of a model of 6 blocks. Interleaved schedules want as many
// micro-batches for each device.
constexpr int64_t kBlocksForTwo = 6;
IslandLayout TwoStagesEach(const std::string& schedule, int devices, bool v_shape) {
  const std::vector<int32_t> cuts[kDevices] = {
      {3, 5}, {1, 3, 2, 2}, {1, 2, 1, 2, 1, 1}, {1, 1, 1, 1, 1, 1, 1, 1}};
  return Pipeline(schedule, cuts[devices - 1], devices == 3 ? 6 : 4, 2, v_shape);
}

void CheckFamily(Kind kind, const sim::ScheduleFamily& family) {
  for (int devices = 1; devices <= kDevices; ++devices) {
    switch (family.placement) {
      case sim::Placement::kAny:
      case sim::Placement::kOneChunk:
        CheckExact(kind, OneStageEach(family.name, devices));
        break;
      case sim::Placement::kInterleaved:
      case sim::Placement::kV:
        CheckExact(kind,
                   TwoStagesEach(family.name, devices, family.placement == sim::Placement::kV),
                   {.blocks = kBlocksForTwo});
        break;
    }
  }
}

TEST_CASE("GPT-2 under every schedule on one to four devices trains as on one") {
  for (const sim::ScheduleFamily& family : sim::ScheduleFamilies()) {
    CheckFamily(Kind::kGpt2, family);
  }
}

TEST_CASE("LLaMA under every schedule on one to four devices trains as on one") {
  for (const sim::ScheduleFamily& family : sim::ScheduleFamilies()) {
    CheckFamily(Kind::kLlama, family);
  }
}

// Schedules that take any placement: with several stages on a device, too.
TEST_CASE("schedules for any placement train as one device does on a V") {
  for (const sim::ScheduleFamily& family : sim::ScheduleFamilies()) {
    if (family.placement != sim::Placement::kAny) continue;
    CheckExact(Kind::kLlama, TwoStagesEach(family.name, 2, /*v_shape=*/true),
               {.blocks = kBlocksForTwo});
  }
}

}  // namespace
}  // namespace atl::worker
