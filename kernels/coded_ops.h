// The operation on weights that are stored as codes; see ops.h for the rules.

#ifndef ATOLL_KERNELS_CODED_OPS_H_
#define ATOLL_KERNELS_CODED_OPS_H_

#include <cstdint>

#include "common/weight_codes.h"
#include "kernels/tensor.h"

namespace atl {

// y = the numbers of rows of a coded matrix (common/weight_codes.h), or of columns of it in whole
// blocks. With s(r, b) = first_scale + r * scale_step + b, the place of row r's block b among the
// scales of the whole matrix:
//   y[r][c] = number of its code * (coarse[0] + coarse[1 + s / 256] * kScaleNumbers[scale code])
// in f32, whatever y is.
struct DecodeWeights {
  WeightCode code = WeightCode::kNf4;
  Tensor codes;   // int32, contiguous: bytes of [R, C] codes
  Tensor scales;  // int32, contiguous: bytes of [R, C / 64] codes of scales, and up to 3 unused
  Tensor coarse;  // f32 of any backend, [1, 1 + groups]: the scales' mean, each group's largest
  int64_t first_scale = 0;
  int64_t scale_step = 0;
  Tensor y;  // act [R, C], contiguous, C a multiple of 64
  void Check() const;
};

}  // namespace atl

#endif  // ATOLL_KERNELS_CODED_OPS_H_
