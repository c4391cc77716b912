// A model small enough for thousands of simulated trainings, with every property the checkers need.
//
// Training on a position moves each parameter by an amount that only that position and parameter
// determine, so a pseudo-gradient is the fingerprint of the positions it was trained on. Arithmetic
// is fp32, as in the real trainer.

#ifndef ATOLL_TESTS_SIM_TOY_TRAINER_H_
#define ATOLL_TESTS_SIM_TOY_TRAINER_H_

#include <cstddef>
#include <cstdint>
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

struct ToyTrainer {
  // A step `scale` times as long as it should be, of one layer.
  static void StepLayer(int32_t layer, std::vector<float>& values,
                        const std::vector<PositionRange>& ranges, double learning_rate,
                        float scale);
};

}  // namespace atl::sim

#endif  // ATOLL_TESTS_SIM_TOY_TRAINER_H_
