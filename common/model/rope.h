// Angles of rotary positions, scaled as the model says.

#ifndef ATOLL_COMMON_MODEL_ROPE_H_
#define ATOLL_COMMON_MODEL_ROPE_H_

#include <vector>

#include "common/model/config.h"

namespace atl {

struct RopeAngles {
  std::vector<double> per_position;  // radians of each of head_dim / 2 pairs of channels
  double length = 1;                 // cosine and sine are multiplied by this
};

// Plain: theta^(-2 i / head_dim). Scaled "linear" by Chen et al. 2023, "dynamic" (NTK-aware) by how
// far a sequence of `positions` is beyond the original ones, "llama3" as Meta's Llama 3.1 does,
// "yarn" by Peng et al. 2023.
RopeAngles ComputeRopeAngles(const ModelConfig& config, int64_t positions);

// The table that kernels read, for sequences of `positions`: row p has the cosines of position p,
// then its sines. [positions, head_dim].
std::vector<double> RopeTable(const ModelConfig& config, int64_t positions);

}  // namespace atl

#endif  // ATOLL_COMMON_MODEL_ROPE_H_
