#include "worker/runtime/emulated_trainer.h"

#include <algorithm>
#include <thread>
#include <utility>

#include "common/check.h"
#include "common/rng.h"
#include "worker/core/leases.h"
#include "worker/data/dataset.h"
#include "worker/model/weights.h"
#include "worker/runtime/model_config.h"

namespace atl::worker {
namespace {

constexpr float kWalk = 1e-4f;  // per step, uniform in +- this

class EmulatedTrainer : public Trainer {
 public:
  explicit EmulatedTrainer(Duration step) : step_(step) {}

  std::string Name() const override {
    return absl::StrCat("emulated (", Seconds(step_) * 1e3, " ms a step)");
  }

  absl::StatusOr<JobFacts> Prepare(const JobSpec& spec) override {
    ATOLL_ASSIGN_OR_RETURN(const ModelConfig config, ModelConfigOfJob(spec));
    ATOLL_ASSIGN_OR_RETURN(const Dataset data, Dataset::Open(spec.data, config.vocab));
    Release();
    spec_ = spec;
    layouts_ = MakeLayouts(config);
    blocks_ = config.layers;
    JobFacts facts;
    for (const LayerLayout& layout : layouts_) {
      facts.layers.push_back({layout.name, layout.size});
      theta_.emplace_back(layout.size);
      walked_.push_back(0);
    }
    facts.train_sequences = data.train_sequences();
    facts.validation_sequences = data.validation_sequences();
    facts.data_digest = data.digest();
    return facts;
  }

  void Release() override {
    theta_.clear();
    walked_.clear();
    steps_ = 0;
  }

  absl::Status InitialWeights() override {
    for (size_t l = 0; l < layouts_.size(); ++l) {
      InitLayer(layouts_[l], blocks_, spec_.model.seed, theta_[l]);
    }
    return absl::OkStatus();
  }

  absl::StatusOr<MeanLoss> Step(const std::vector<PositionRange>& ranges, double) override {
    // A short last batch takes its share of the time.
    const int64_t sequences = Sequences(ranges);
    std::this_thread::sleep_for(step_ * sequences / spec_.inner.batch_sequences);
    ++steps_;
    return MeanLoss{0, sequences * spec_.data.sequence_length};
  }

  absl::StatusOr<MeanLoss> Validate(int64_t sequences) override {
    return MeanLoss{0, sequences * spec_.data.sequence_length};
  }

  absl::Status GetParameters(int layer, std::span<float> out) override {
    std::vector<float>& theta = theta_[layer];
    ATOLL_CHECK(out.size() == theta.size());
    const int64_t steps = std::exchange(walked_[layer], steps_);
    if (steps != steps_) {
      Rng rng(static_cast<uint64_t>(steps_), static_cast<uint64_t>(layer));
      const float reach = kWalk * static_cast<float>(steps_ - steps);
      for (float& value : theta) {
        value += reach * (static_cast<float>(rng.Next() >> 40) * 0x1.0p-23f - 1.0f);
      }
    }
    std::copy(theta.begin(), theta.end(), out.begin());
    return absl::OkStatus();
  }
  absl::Status SetParameters(int layer, std::span<const float> values) override {
    ATOLL_CHECK(values.size() == theta_[layer].size());
    std::copy(values.begin(), values.end(), theta_[layer].begin());
    walked_[layer] = steps_;
    return absl::OkStatus();
  }

  // It has no optimizer; moments are zero.
  absl::Status GetMoments(int, std::span<float> first, std::span<float> second) override {
    std::fill(first.begin(), first.end(), 0.0f);
    std::fill(second.begin(), second.end(), 0.0f);
    return absl::OkStatus();
  }
  absl::Status SetMoments(int, std::span<const float>, std::span<const float>) override {
    return absl::OkStatus();
  }
  int64_t optimizer_steps() const override { return steps_; }
  absl::Status SetOptimizerSteps(int64_t steps) override {
    steps_ = steps;
    std::fill(walked_.begin(), walked_.end(), steps);
    return absl::OkStatus();
  }

 private:
  const Duration step_;
  JobSpec spec_;
  std::vector<LayerLayout> layouts_;
  int64_t blocks_ = 0;
  std::vector<std::vector<float>> theta_;
  std::vector<int64_t> walked_;  // steps that theta_ already shows
  int64_t steps_ = 0;
};

}  // namespace

std::unique_ptr<Trainer> NewEmulatedTrainer(Duration step) {
  return std::make_unique<EmulatedTrainer>(step);
}

}  // namespace atl::worker
