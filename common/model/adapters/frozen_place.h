// Where a layer's frozen tensors lie in their buffer: memory laws, planners and workers alike.

#ifndef ATOLL_COMMON_MODEL_ADAPTERS_FROZEN_PLACE_H_
#define ATOLL_COMMON_MODEL_ADAPTERS_FROZEN_PLACE_H_

#include <cstdint>
#include <vector>

#include "common/model/layout.h"

namespace atl {

// Rows of a coded matrix of which the first one's first scale is the whole matrix's scale
// `first_scale`, and the next one's is `scale_step` further.
struct CodedRows {
  int64_t rows = 0;
  int64_t first_scale = 0;
  int64_t scale_step = 0;
};

// Bytes from the start of the buffer.
struct FrozenPlace {
  int64_t values = 0;  // numbers of the compute type; or codes
  // A coded one has rows: codes of this part's scales, row by row; then, as f32, the mean of all
  // scales of the whole matrix, and the largest of each of its blocks of them.
  std::vector<CodedRows> rows;
  int64_t cols = 0;
  int64_t scales = 0;
  int64_t coarse = 0;
  int64_t coarse_numbers = 0;

  bool coded() const { return !rows.empty(); }
};

struct FrozenPlaces {
  std::vector<FrozenPlace> params;  // of LayerLayout::frozen
  int64_t bytes = 0;
};

// Numbers of the compute type come first, without gaps; all else begins at multiples of 64 bytes.
// Where the model has codes, a buffer is of whole words of 4 bytes.
FrozenPlaces PlaceFrozen(const LayerLayout& layout, int64_t compute_bytes);

}  // namespace atl

#endif  // ATOLL_COMMON_MODEL_ADAPTERS_FROZEN_PLACE_H_
