// Sizes of whole models, which published ones are compared with.

#ifndef ATOLL_COMMON_MODEL_TESTING_MODEL_SIZES_H_
#define ATOLL_COMMON_MODEL_TESTING_MODEL_SIZES_H_

#include <cstdint>

#include "common/model/costs.h"
#include "common/model/layout.h"

namespace atl::testing {

// Number of parameters; a tied table counts once. REQUIRES: valid.
inline int64_t ParameterCount(const ModelConfig& config) {
  int64_t sum = 0;
  for (const LayerLayout& layout : MakeLayouts(config)) sum += layout.size;
  return sum;
}

// Parameters that a token does not go through. REQUIRES: valid.
inline int64_t IdleParameterCount(const ModelConfig& config) {
  int64_t sum = 0;
  for (int64_t layer = 0; layer < config.layers + 2; ++layer) sum += IdleParameters(config, layer);
  return sum;
}

// Floating-point operations of forward and backward for one token of a sequence of `seq_len`
// tokens: 6 per weight of a matrix product (a table look-up is none) and attention.
inline double TrainFlopsPerToken(const ModelConfig& config, int64_t seq_len) {
  double flops = 0;
  for (int64_t layer = 0; layer < config.layers + 2; ++layer) {
    flops += 3 * ForwardFlops(config, layer, seq_len);
  }
  return flops / static_cast<double>(seq_len);
}

}  // namespace atl::testing

#endif  // ATOLL_COMMON_MODEL_TESTING_MODEL_SIZES_H_
