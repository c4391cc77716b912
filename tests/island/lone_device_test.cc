// A worker of one device whose job fits it by a plan alone: it says so, and trains by the plan as a
// larger device does without one.

#include <catch2/catch.hpp>
#include <cmath>

#include "common/model/job_model.h"
#include "coordinator/planning/auxiliary_memory.h"
#include "coordinator/planning/plan_changes.h"
#include "coordinator/planning/planning.h"
#include "tests/island/group_fixture.h"
#include "tests/island/solo_island.h"
#include "worker/profiler/layer_profiler.h"

namespace atl::worker {
namespace {

constexpr int kSteps = 6;

// A worker of one CPU device that has so much memory; 0: as much as it likes.
class LoneWorker : public SoloIsland {
 public:
  LoneWorker(const World& world, int64_t memory_bytes)
      : SoloIsland(Options(world.spec, memory_bytes)), memory_bytes_(memory_bytes) {}

  std::vector<double> Trains() {
    Does<InitialWeightsMade>(MakeInitialWeights{});
    std::vector<double> losses;
    for (int64_t step = 0; step < kSteps; ++step) {
      losses.push_back(Does<StepDone>(TrainStep{Batch(step), GetLearningRate(step)}).loss);
    }
    return losses;
  }
  int64_t PeakBytes() { return events().memory().devices.at(0).peak_bytes; }

  // Profiles with which the coordinator plans.
  PlanRequest Request(const Prepared& prepared) {
    PlanRequest request;
    request.spec = spec;
    request.facts = prepared.facts;
    PlanMember member;
    member.member = {"w1", 1, this->member().endpoint(), ""};
    member.profiles = prepared.profiles;
    member.devices = {{"cpu", memory_bytes_, 1}};
    request.members = {std::move(member)};
    request.members[0].devices[0].memory_bytes += LeastOwnerBytes(request);
    return request;
  }

 private:
  static SoloOptions Options(const JobSpec& spec, int64_t memory_bytes) {
    SoloOptions options{.spec = spec};
    options.make_device = [memory_bytes](int index) -> LocalDevice {
      return {index, NewCpuBackend(1, memory_bytes), NewCpuBackend(1), memory_bytes};
    };
    options.hooks.profiles = [memory_bytes](const JobSpec& job, const JobFacts&, bool needs_plan,
                                            const std::atomic<bool>&) {
      return needs_plan ? Measure(job, memory_bytes) : std::vector<DeviceProfile>();
    };
    return options;
  }
  static std::vector<DeviceProfile> Measure(const JobSpec& spec, int64_t memory_bytes) {
    const std::unique_ptr<Backend> backend = NewCpuBackend(1, memory_bytes);
    ProfileOptions options;
    options.sequence_length = spec.data.sequence_length;
    options.micro_batch_max = spec.inner.batch_sequences;
    options.runs = 1;
    auto profiles =
        ProfileLayers({{"w1/0", "cpu", backend.get()}}, ModelConfigOfJob(spec).value(), options);
    ATOLL_CHECK(profiles.ok(), profiles.status().ToString());
    const uint64_t digest =
        ComputeModelDigest(ToSpec(ModelConfigOfJob(spec).value()), spec.data.sequence_length);
    for (DeviceProfile& profile : *profiles) profile.model_digest = digest;
    return *std::move(profiles);
  }

  const int64_t memory_bytes_;
};

struct LoneDeviceWorld : World {
  LoneDeviceWorld() { spec.inner.micro_batch_sequences = kBatch; }
};

struct TightWorker {
  std::unique_ptr<LoneWorker> worker;
  IslandPlan plan;
};

// A worker with so much less memory than `bytes` that its plan recomputes, and no less: a peak is
// what messages and layers in flight happened to take together.
TightWorker LessUntilItRecomputes(const LoneDeviceWorld& lone_world, int64_t bytes) {
  for (int64_t percent = 98; percent >= 60; percent -= 2) {
    auto worker = std::make_unique<LoneWorker>(lone_world, bytes * percent / 100);
    const Prepared prepared = worker->Prepares();
    if (prepared.profiles.empty()) continue;  // it fits as it is
    auto plan = PlanIsland(worker->Request(prepared));
    INFO("with " << percent << "% of the peak");
    REQUIRE(plan.status().message() == "");
    if (Recomputes(*plan)) return {std::move(worker), *std::move(plan)};
  }
  FAIL("no plan recomputes");
  return {};
}

TEST_CASE("a job that fits a lone device needs no plan, and nothing is measured") {
  const LoneDeviceWorld lone_world;
  LoneWorker worker(lone_world, 0);
  CHECK(worker.Prepares().profiles.empty());
}

TEST_CASE("a job that fits a lone device by recomputation trains as on a larger one") {
  const LoneDeviceWorld lone_world;
  LoneWorker ample(lone_world, 0);
  ample.Prepares();
  const std::vector<double> losses = ample.Trains();
  const TightWorker tight = LessUntilItRecomputes(lone_world, ample.PeakBytes());
  CAPTURE(tight.plan.reason);
  CHECK(Says(tight.plan.reason, "stage 0 recomputes "));
  tight.worker->Does<Reconfigured>(Reconfigure{kJob, 0, 1, tight.plan});
  const std::vector<double> again = tight.worker->Trains();
  for (int s = 0; s < kSteps; ++s) {
    CAPTURE(s);
    CHECK(std::abs(again[s] - losses[s]) <= 1e-5 * losses[s]);
  }
}

std::string Refusal(LoneWorker& worker) {
  return std::string(worker.trainer().Prepare(kJob, worker.spec).status().message());
}

TEST_CASE("a job that fits a lone device by no plan is refused by its fields") {
  const LoneDeviceWorld lone_world;
  LoneWorker ample(lone_world, 0);
  ample.Prepares();
  ample.Trains();
  const int64_t ample_bytes = ample.PeakBytes();
  {  // what every plan needs does not fit
    LoneWorker tight(lone_world, ample_bytes * 2 / 5);
    const auto plan = PlanIsland(tight.Request(tight.Prepares()));
    REQUIRE_FALSE(plan.ok());
    Says(plan.status().message(), "w1/0");
    Says(plan.status().message(), "lower inner.micro_batch_sequences");
  }
  {  // not even one layer does
    LoneWorker tight(lone_world, 1000);
    tight.spec.layout.recompute = Recompute::kNone;
    const std::string reason = Refusal(tight);
    Says(reason, "out of memory");
  }
  {  // a plan could do no other
    LoneWorker tight(lone_world, ample_bytes * 3 / 4);
    tight.spec.layout.recompute = Recompute::kNone;
    const std::string reason = Refusal(tight);
    Says(reason, "set layout.recompute");
  }
}

}  // namespace
}  // namespace atl::worker
