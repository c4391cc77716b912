// A model small enough for thousands of simulated trainings, with every property the checkers need.
//
// Training on a position moves each parameter by an amount that only that position and parameter
// determine, so a delta is the fingerprint of the positions it was trained on. Arithmetic is fp32,
// as in the real trainer.

#ifndef ATOLL_TESTS_SIM_TOY_TRAINER_H_
#define ATOLL_TESTS_SIM_TOY_TRAINER_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

#include "common/ids.h"
#include "common/protocol/control.h"

namespace atl::sim {

using LayerValues = std::vector<std::vector<float>>;  // [layer][element]

inline const std::vector<LayerSize>& ToyLayers() {
  static const std::vector<LayerSize> layers = {{"embedding", 7}, {"block.0", 12}, {"block.1", 5}};
  return layers;
}

JobFacts ToyFacts(const JobSpec& spec);
LayerValues ToyInitialWeights(uint64_t seed);

// The worker's parameters, as the commands of worker/core/actions.h treat them.
struct ToyTrainer {
  LayerValues theta, theta_base, theta_push, pulled;
  LayerValues delta;     // of the contribution in flight, as it travels
  LayerValues residual;  // empty: zeroes
  std::map<ShardId, std::vector<std::byte>> encoded;  // the delta, where it is quantised

  void Initialize(uint64_t seed);
  // A step `scale` times as long as it should be.
  void Step(const std::vector<PositionRange>& ranges, double learning_rate, float scale);
  // The same, of one layer.
  static void StepLayer(int32_t layer, std::vector<float>& values,
                        const std::vector<PositionRange>& ranges, double learning_rate,
                        float scale);
  void CaptureDelta(bool initial);
  void Replace();
  void Carry();
};

}  // namespace atl::sim

#endif  // ATOLL_TESTS_SIM_TOY_TRAINER_H_
