// An island of one process: the engines of its workers, and the same model on one device to compare
// with.

#ifndef ATOLL_TESTS_ISLAND_ISLAND_HARNESS_H_
#define ATOLL_TESTS_ISLAND_ISLAND_HARNESS_H_

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "common/protocol/island_plan.h"
#include "worker/model/runner.h"
#include "worker/pipeline/engine.h"
#include "worker/pipeline/local_transport.h"
#include "worker/pipeline/testing/local_communicators.h"

namespace atl::worker {

// All layers' buffers, whole.
using Layers = std::vector<std::vector<float>>;

// ||a - b|| / ||b|| over all layers.
double RelativeDifference(const Layers& a, const Layers& b);

// Random, from the seed, far from special values.
Layers RandomWeights(const ModelConfig& config, uint64_t seed);
// Returns the frozen weights that every device of the tests has of a model with an adapter.
Layers MakeFrozenLayers(const ModelConfig& config);
std::vector<int32_t> RandomTokens(const EngineJob& job, int64_t sequences, uint64_t seed);

// How the workers of an island reach each other.
class IslandNetwork {
 public:
  virtual ~IslandNetwork() = default;

  // This plan is to be set up. What communicators() gave before it stays valid until the next one.
  virtual void Begin(const IslandPlan& plan) = 0;
  virtual Transport& transport(const NodeId& worker) = 0;
  virtual CommunicatorFactory& communicators(const NodeId& worker) = 0;
};

// By one transport for all, which is a queue of its own unless it gets one, and by groups of
// threads.
class LocalNetwork final : public IslandNetwork {
 public:
  explicit LocalNetwork(Transport* transport = nullptr)
      : queue_(int64_t{64} << 20), transport_(transport == nullptr ? queue_ : *transport) {}

  void Begin(const IslandPlan& plan) override;
  Transport& transport(const NodeId&) override { return transport_; }
  CommunicatorFactory& communicators(const NodeId&) override { return *communicators_; }

 private:
  LocalTransport queue_;
  Transport& transport_;
  std::unique_ptr<LocalCommunicators> older_, communicators_;
};

// The network outlives it; without one it has a LocalNetwork of its own, on `transport` if that is
// not null. Without `make_device`, devices are the CPU's, of one thread.
class TestIsland {
 public:
  using MakeDevice = LocalDevice (*)(int index);
  TestIsland(const EngineJob& job, const IslandPlan& plan, EngineOptions options,
             Transport* transport = nullptr, MakeDevice make_device = nullptr);
  TestIsland(const EngineJob& job, const IslandPlan& plan, EngineOptions options,
             IslandNetwork& network);

  // Also after an interruption; with the layers that are there.
  absl::Status Configure(const IslandPlan& plan);

  Layers Get(LayerPart part);
  void Set(LayerPart part, const Layers& layers);
  void SetOptimizerSteps(int64_t steps);

  // On all workers at once; what the first worker says.
  absl::StatusOr<StepOutcome> Step(const std::vector<int32_t>& tokens, double learning_rate,
                                   double norm_limit = 0);
  absl::StatusOr<LossSum> Evaluate(const std::vector<int32_t>& tokens);

  // Later steps have larger numbers than this.
  void Skip(int64_t number) { number_ = std::max(number_, number); }

  Engine& engine(size_t worker) { return *engines_[worker]; }
  size_t workers() const { return engines_.size(); }

 private:
  void Begin(const IslandPlan& plan, EngineOptions options, MakeDevice make_device);
  template <typename Function>
  absl::Status OnAll(const Function& function);
  // Adds the references of pairs.
  absl::StatusOr<StepRequest> Request(const std::vector<int32_t>& tokens, double learning_rate);
  SequenceReader Reader(const std::vector<int32_t>& tokens) const;
  LayerLayout MakePartLayout(int32_t layer, int32_t rank) const;  // under the plan in force

  const EngineJob job_;
  IslandPlan plan_;
  LocalNetwork local_;
  IslandNetwork& network_;
  std::vector<NodeId> names_;
  std::vector<std::unique_ptr<Engine>> engines_;
  int64_t number_ = 0;
  Layers first_;  // of pairs without an adapter: the parameters of the first step
};

// A device that computes as the CPU does, in memory that the host cannot touch and on streams that
// work later (kernels/testing/fake_device.h).
LocalDevice NewFakeDevice(int index);

// One device with the whole batch at once, or in micro-batches of so many rows.
class TestDevice {
 public:
  // Makes a device of f64 on the reference backend. Of pairs, documents are not packed here.
  explicit TestDevice(const EngineJob& job, int64_t micro_batch_rows = 0);

  void Set(const Layers& params);
  Layers Get(LayerPart part);
  // The gradients of the last step.
  const Layers& gradients() const { return gradients_; }
  LossSum Step(const std::vector<int32_t>& tokens, double learning_rate);
  LossSum Evaluate(const std::vector<int32_t>& tokens);
  int64_t steps() const { return steps_; }

 private:
  Layers Read(Tensor (*part)(LayerState&));
  // DPO of pairs, by sequences of one answer alone: the loss, and with `train` its gradient.
  LossSum RunPairs(const std::vector<int32_t>& tokens, bool train);

  const EngineJob job_;
  // The reference of pairs: without the adapter; where there is none, with the first parameters.
  std::unique_ptr<TestDevice> base_;
  bool base_set_ = false;
  std::unique_ptr<Backend> backend_;
  std::unique_ptr<Model> model_;
  std::unique_ptr<ModelRunner> runner_;
  std::unique_ptr<Optimizer> optimizer_;
  Layers gradients_;
  int64_t steps_ = 0;
};

}  // namespace atl::worker

#endif  // ATOLL_TESTS_ISLAND_ISLAND_HARNESS_H_
