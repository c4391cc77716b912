#include "worker/pipeline/all_reduce_meter.h"

#include <catch2/catch.hpp>

namespace atl::worker {
namespace {

using std::chrono::milliseconds;

// Four layers, whole, on each of these devices.
IslandPlan Plan(const std::vector<std::string>& devices) {
  IslandPlan plan;
  plan.number = 7;
  for (const std::string& device : devices) {
    plan.replicas.push_back({{{0, 4, {device}, {}}}, 2, 1});
    const NodeId worker = WorkerFromDevice(device);
    if (plan.members.empty() || plan.members.back().worker != worker) {
      plan.members.push_back({worker, 1, "tcp://" + worker, ""});
    }
  }
  return plan;
}

struct Fixture {
  explicit Fixture(const std::vector<std::string>& devices)
      : plan(Plan(devices)),
        role(MakeDeviceRole(plan, devices[0], 4, TiedTable::kNone)),
        meter(role, plan, [this] { return ++windows; }) {}

  // A step whose all-reduces take so long; the last of them is the largest.
  void Steps(int ms) {
    DeviceStep step;
    for (size_t i = 0; i < role.syncs.size(); ++i) {
      OpSpan span{{.kind = PlanOpKind::kSync}, now, now + milliseconds(ms)};
      span.bytes = i + 1 == role.syncs.size() ? 9000 : 4000;
      if (span.bytes < 9000) span.end -= milliseconds(ms / 2);
      step.sync_spans.push_back(span);
    }
    meter.Add(step);
  }

  int64_t windows = 0;
  Instant now{};
  IslandPlan plan;
  DeviceRole role;
  AllReduceMeter meter;
};

TEST_CASE(
    "twenty all-reduces and the rest of their step are a window, and the quickest large one "
    "counts") {
  Fixture fixture({"w1/0", "w2/0"});
  REQUIRE(fixture.role.syncs.size() == 4);
  fixture.Steps(50);
  fixture.Steps(10);
  fixture.Steps(30);
  fixture.Steps(30);
  CHECK(fixture.meter.sums().empty());
  fixture.Steps(20);
  REQUIRE(fixture.meter.sums().size() == 1);
  const AllReduceTimes first = fixture.meter.sums()[0];
  CHECK(first.device == "w1/0");
  CHECK(first.devices == std::vector<std::string>{"w1/0", "w2/0"});
  CHECK(first.plan_number == 7);
  CHECK(first.window == 1);
  CHECK(first.bytes == 9000);
  CHECK(first.quickest_seconds == Approx(0.010));
  for (int i = 0; i < 4; ++i) fixture.Steps(80);
  CHECK(fixture.meter.sums()[0] == first);
  fixture.Steps(90);
  CHECK(fixture.meter.sums()[0].window == 2);
  CHECK(fixture.meter.sums()[0].quickest_seconds == Approx(0.080));
}

TEST_CASE("all-reduces within a worker, and NCCL's, are ignored") {
  Fixture within({"w1/0", "w1/1"});
  for (int i = 0; i < 20; ++i) within.Steps(10);
  CHECK(within.meter.sums().empty());

  IslandPlan plan = Plan({"w1/0", "w2/0"});
  for (IslandMember& member : plan.members) {
    member.nccl = "2.18";
    member.site = "here";
  }
  const DeviceRole role = MakeDeviceRole(plan, "w1/0", 4, TiedTable::kNone);
  AllReduceMeter meter(role, plan, [] { return 1; });
  DeviceStep step;
  step.sync_spans.resize(role.syncs.size());
  for (OpSpan& span : step.sync_spans) span.bytes = 1000;
  for (int i = 0; i < 20; ++i) meter.Add(step);
  CHECK(meter.sums().empty());
}

}  // namespace
}  // namespace atl::worker
