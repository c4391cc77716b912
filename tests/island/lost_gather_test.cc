// Parameters come back beside the next step, and those that an all-gather did not bring are
// committed by no later step, whichever thread has had the gather's failure: a device gives it
// once.

#include <atomic>
#include <latch>
#include <memory>
#include <thread>

#include "kernels/async_failure.h"
#include "kernels/testing/fake_device.h"
#include "kernels/testing/gate.h"
#include "tests/island/engine_fixture.h"

namespace atl::worker {
namespace {

constexpr char kDevice[] = "w1/0";

// The gathers of one device: the one that fails is stalled first, behind the gate.
struct Gathers {
  std::atomic<int> seen = 0, fails = -1;
  testing::Gate gate;
};

class LossyMember final : public Communicator {
 public:
  LossyMember(std::unique_ptr<Communicator> inner, Gathers* gathers)
      : inner_(std::move(inner)), gathers_(*gathers) {}

  int rank() const override { return inner_->rank(); }
  int size() const override { return inner_->size(); }
  absl::Status AllReduceSum(Backend& backend, Stream& stream, const Tensor& x) override {
    return inner_->AllReduceSum(backend, stream, x);
  }
  absl::Status AllReduceMax(Backend& backend, Stream& stream, const Tensor& x) override {
    return inner_->AllReduceMax(backend, stream, x);
  }
  absl::Status ReduceScatterSum(Backend& backend, Stream& stream, const Tensor& x,
                                const Cuts& cuts) override {
    return inner_->ReduceScatterSum(backend, stream, x, cuts);
  }
  absl::Status AllGather(Backend& backend, Stream& stream, const Tensor& x, const Cuts& cuts,
                         const Routes& routes) override {
    ATOLL_RETURN_IF_ERROR(inner_->AllGather(backend, stream, x, cuts, routes));
    if (++gathers_.seen != gathers_.fails) return absl::OkStatus();
    testing::EnqueueOnFake(backend, stream, [this] { gathers_.gate.Pass(); });
    auto failure = std::make_shared<AsyncFailure>();
    failure->Keep(absl::UnavailableError("the gather was lost"));
    dynamic_cast<ReportsFailures&>(backend).AddFailureSource(std::move(failure));
    return absl::OkStatus();
  }
  void Abort(const std::string& reason) override { inner_->Abort(reason); }

 private:
  const std::unique_ptr<Communicator> inner_;
  Gathers& gathers_;
};

class LossyCommunicators final : public LocalCommunicators {
 public:
  explicit LossyCommunicators(Gathers* gathers)
      : LocalCommunicators(std::chrono::seconds(60)), gathers_(gathers) {}
  absl::StatusOr<std::unique_ptr<Communicator>> Create(const std::string& name,
                                                       const std::vector<std::string>& devices,
                                                       const std::string& own) override {
    ATOLL_ASSIGN_OR_RETURN(std::unique_ptr<Communicator> member,
                           LocalCommunicators::Create(name, devices, own));
    if (own != kDevice) return member;
    return std::make_unique<LossyMember>(std::move(member), gathers_);
  }

 private:
  Gathers* const gathers_;
};

// Two devices of fake hardware, the first of which loses gathers.
struct LossyIsland {
  LossyIsland() {
    layout.replicas = {{{6}, 2, 2}, {{6}, 2, 2}};
    layout.optimizer_copies = 1;
    std::vector<LocalDevice> devices;
    for (const int index : {0, 1}) devices.push_back(NewFakeDevice(index));
    engine = std::make_unique<Engine>("w1", std::move(devices), EngineOptions());
    Configure();
  }
  void Configure() {
    communicators.push_back(std::make_unique<LossyCommunicators>(&gathers));
    const absl::Status status =
        engine->Configure(Job(), MakePlan(layout), &transport, communicators.back().get());
    INFO(status.message());
    REQUIRE(status.ok());
    const Layers weights = RandomWeights(Job().model, 5);
    for (size_t l = 0; l < weights.size(); ++l) {
      const LayerShard shard{static_cast<int32_t>(l), 0, {1}};
      REQUIRE(engine->SetLayer(shard, LayerPart::kParameters, weights[l]).ok());
    }
  }
  absl::Status Step() {
    return engine->Step({++number, Job().batch_sequences, kLearningRate}, Reader(Batch(0)))
        .status();
  }
  // A step, the last of whose gathers is lost once the gate opens.
  void LoseGather(int gathers_a_step) {
    gathers.fails = gathers.seen + gathers_a_step;
    gathers.gate.Close();
    // The step is taken, and its end waits for no parameter that is on its way.
    REQUIRE(Step().ok());
    gathers.gate.AwaitStall();
  }

  IslandLayout layout;
  Gathers gathers;
  LocalTransport transport{int64_t{64} << 20};
  std::vector<std::unique_ptr<LossyCommunicators>> communicators;  // one a plan
  std::unique_ptr<Engine> engine;
  int64_t number = 0;
};

TEST_CASE("parameters_of_a_lost_gather_are_committed_by_no_later_step") {
  LossyIsland island;
  REQUIRE(island.Step().ok());
  REQUIRE(island.gathers.seen > 0);
  island.LoseGather(island.gathers.seen);
  std::thread reader;
  SECTION("a reader waits for them, and may have the failure") {
    std::latch begun(1);
    reader = std::thread([&] {
      begun.count_down();
      (void)island.engine->Held();
    });
    begun.wait();  // it reads before the loss is known, or just after: both are right
  }
  SECTION("only the next step does") {}
  island.gathers.gate.Open();
  if (reader.joinable()) reader.join();
  CHECK_FALSE(island.Step().ok());
  CHECK(island.engine->optimizer_steps() == 2);
  for (const HeldLayer& held : island.engine->Held()) {
    if (held.device == kDevice) CHECK_FALSE(held.whole);
  }
}

// The plan's end and the thread that notices the loss meet within a millisecond, in each round
// anew.
TEST_CASE("a_lost_gather_does_not_count_against_the_next_plan") {
  LossyIsland island;
  REQUIRE(island.Step().ok());
  const int gathers_a_step = island.gathers.seen;
  for (int round = 0; round < 10; ++round) {
    island.LoseGather(gathers_a_step);
    island.gathers.gate.Open();
    island.Configure();
    REQUIRE(island.Step().ok());
  }
}

}  // namespace
}  // namespace atl::worker
