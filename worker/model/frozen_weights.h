// The values of a layer's frozen tensors on their way from a model's folder to devices.

#ifndef ATOLL_WORKER_MODEL_FROZEN_WEIGHTS_H_
#define ATOLL_WORKER_MODEL_FROZEN_WEIGHTS_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "common/model/adapters/frozen_place.h"
#include "common/model/layout.h"
#include "kernels/tensor.h"

namespace atl {

// A whole matrix as codes (common/weight_codes.h).
struct CodedMatrix {
  std::vector<uint8_t> codes, scales;
  std::vector<float> coarse;  // the scales' mean, then the largest of each block of them
};
// REQUIRES: whole blocks.
CodedMatrix EncodeMatrix(WeightCode code, std::span<const float> values);
void DecodeMatrix(WeightCode code, const CodedMatrix& matrix, std::span<float> values);

// The frozen tensors of a whole layer. Matrices are coded whole, once, and then cut: so each rank
// of any layout has the same codes of the elements that are its own.
class FrozenWeights {
 public:
  // `layout`: of the model with the adapter, whole. `values` are its FrozenLayout's, and outlive
  // this.
  FrozenWeights(const LayerLayout& layout, std::span<const float> values);

  // Returns the frozen buffer of a part of the layer, or of a table's copy, which has the first
  // tensors alone.
  std::vector<std::byte> Image(const LayerLayout& part, DType compute) const;
  // Returns the values that are computed with: decoded where they are stored as codes.
  std::vector<float> Stored() const;

 private:
  const LayerLayout layout_;
  const std::span<const float> values_;
  std::vector<std::optional<CodedMatrix>> coded_;  // by tensor
};

}  // namespace atl

#endif  // ATOLL_WORKER_MODEL_FROZEN_WEIGHTS_H_
