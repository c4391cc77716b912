#include "worker/model/merge_adapter.h"

#include <algorithm>
#include <vector>

namespace atl {

void MergeAdapter(const LayerLayout& layout, const AdapterConfig& adapter,
                  std::span<const float> params, std::span<float> frozen) {
  const double scale = adapter.scale();
  for (const AdaptedMatrix& adapted : layout.adapted) {
    const ParamSpec& w = layout.frozen[adapted.matrix];
    const auto a = params.subspan(static_cast<size_t>(layout.params[adapted.a].offset));
    const auto b = params.subspan(static_cast<size_t>(layout.params[adapted.b].offset));
    const auto rank = static_cast<size_t>(adapter.rank);
    const auto cols = static_cast<size_t>(layout.params[adapted.a].shape[1]);
    const auto rows = static_cast<size_t>(w.size) / cols;
    std::vector<double> sums(cols);
    for (size_t row = 0; row < rows; ++row) {
      std::fill(sums.begin(), sums.end(), 0.0);
      for (size_t r = 0; r < rank; ++r) {
        const double factor = scale * b[row * rank + r];
        for (size_t col = 0; col < cols; ++col) sums[col] += factor * a[r * cols + col];
      }
      float* const to = frozen.data() + static_cast<size_t>(w.offset) + row * cols;
      for (size_t col = 0; col < cols; ++col) to[col] += static_cast<float>(sums[col]);
    }
  }
}

}  // namespace atl
