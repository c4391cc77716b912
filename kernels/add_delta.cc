// Compiled without fused multiply-adds, like deltas.cc.

#include "kernels/add_delta.h"

#include <algorithm>
#include <vector>

#include "common/check.h"

namespace atl {
namespace {

constexpr int64_t kBlockElements = 64 * kQuantBlock;  // stays in the processor's cache

}  // namespace

void AddDelta(const DeltaView& delta, std::span<const float> base, std::span<float> out,
              ThreadPool& pool) {
  ATOLL_CHECK(std::ssize(base) == delta.size && std::ssize(out) == delta.size, "sizes differ");
  std::vector<float> values(static_cast<size_t>(std::min(kBlockElements, delta.size)));
  for (int64_t begin = 0; begin < delta.size; begin += kBlockElements) {
    const int64_t size = std::min(kBlockElements, delta.size - begin);
    const std::span<float> block = std::span(values).first(static_cast<size_t>(size));
    const auto* bytes = static_cast<const std::byte*>(delta.data);
    DecodeDelta({bytes + EncodedBytes(delta.encoding, begin), delta.encoding, size}, block, pool);
    for (int64_t i = 0; i < size; ++i) {
      out[static_cast<size_t>(begin + i)] =
          base[static_cast<size_t>(begin + i)] + block[static_cast<size_t>(i)];
    }
  }
}

}  // namespace atl
