#include "tests/sim/toy_trainer.h"

#include "common/rng.h"

namespace atl::sim {
namespace {

LayerValues Zeros() {
  LayerValues values;
  for (const LayerSize& layer : ToyLayers()) values.emplace_back(layer.elements, 0.0f);
  return values;
}

}  // namespace

JobFacts ToyFacts(const JobSpec& spec) {
  return {ToyLayers(), /*train_sequences=*/97, /*validation_sequences=*/8,
          /*data_digest=*/spec.data.shuffle_seed + 1};
}

LayerValues ToyInitialWeights(uint64_t seed) {
  LayerValues values = Zeros();
  for (size_t l = 0; l < values.size(); ++l) {
    Rng rng(seed, l);
    for (float& x : values[l]) x = static_cast<float>(rng.Normal());
  }
  return values;
}

void ToyTrainer::StepLayer(int32_t layer, std::vector<float>& values,
                           const std::vector<PositionRange>& ranges, double learning_rate,
                           float scale) {
  scale *= static_cast<float>(0.01 + 0.001 * learning_rate);
  for (const PositionRange& range : ranges) {
    for (int64_t position = range.begin; position < range.end; ++position) {
      Rng rng(static_cast<uint64_t>(position), layer);
      for (float& x : values) x -= scale * static_cast<float>(rng.Uniform() - 0.5);
    }
  }
}

}  // namespace atl::sim
