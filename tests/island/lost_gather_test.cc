// Parameters come back beside the next step, and those that an all-gather did not bring are
// committed by no later step, whichever thread has had the gather's failure: a device gives it
// once.

#include <atomic>
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

TEST_CASE("parameters_of_a_lost_gather_are_committed_by_no_later_step") {
  IslandLayout layout;
  layout.replicas = {{{6}, 2, 2}, {{6}, 2, 2}};
  layout.optimizer_copies = 1;
  Gathers gathers;
  LocalTransport transport(int64_t{64} << 20);
  LossyCommunicators communicators(&gathers);
  std::vector<LocalDevice> devices;
  for (const int index : {0, 1}) devices.push_back(NewFakeDevice(index));
  Engine engine("w1", std::move(devices), {});
  REQUIRE(engine.Configure(Job(), MakePlan(layout), &transport, &communicators).ok());
  const Layers weights = RandomWeights(Job().model, 5);
  for (size_t l = 0; l < weights.size(); ++l) {
    const LayerShard shard{static_cast<int32_t>(l), 0, {1}};
    REQUIRE(engine.SetLayer(shard, LayerPart::kParameters, weights[l]).ok());
  }
  const auto step = [&](int64_t number) {
    return engine.Step({number, Job().batch_sequences, kLearningRate}, Reader(Batch(0))).status();
  };
  REQUIRE(step(1).ok());
  const int gathers_a_step = gathers.seen;
  REQUIRE(gathers_a_step > 0);
  gathers.fails = 2 * gathers_a_step;
  gathers.gate.Close();
  // The step is taken, and its end waits for no parameter that is on its way.
  REQUIRE(step(2).ok());
  gathers.gate.AwaitStall();
  std::thread reader;
  SECTION("a reader waits for them, and may have the failure") {
    reader = std::thread([&] { (void)engine.Held(); });
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  SECTION("only the next step does") {}
  gathers.gate.Open();
  if (reader.joinable()) reader.join();
  CHECK_FALSE(step(3).ok());
  CHECK(engine.optimizer_steps() == 2);
  for (const HeldLayer& held : engine.Held()) {
    if (held.device == kDevice) CHECK_FALSE(held.whole);
  }
}

}  // namespace
}  // namespace atl::worker
