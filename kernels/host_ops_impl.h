// How the steps of the outer optimizer and the Gram matrix read pseudo-gradients: tile by tile,
// each where it lies or decoded. Included by the two sources that make kernels of it, and by no
// other.

#ifndef ATOLL_KERNELS_HOST_OPS_IMPL_H_
#define ATOLL_KERNELS_HOST_OPS_IMPL_H_

#include <cstddef>
#include <cstdint>

#include "common/check.h"
#include "kernels/bfloat16.h"
#include "kernels/codecs/codec.h"
#include "kernels/deltas.h"
#include "kernels/simd.h"

namespace atl {

// Elements one task handles: large enough to hide the cost of handing it out.
inline constexpr int64_t kTaskElements = 1 << 16;
// Elements handled at a time inside a task, so that the weighted sum of many deltas, and what
// quantised ones decode to, stay in the cache while each delta is read once.
inline constexpr int64_t kTile = 1024;
inline constexpr int64_t kTileMax = 4096;  // a multiple of every codec's block

inline int64_t Tasks(int64_t n) { return (n + kTaskElements - 1) / kTaskElements; }

// Numbers of f32 or bf16: those at i to i + 15, and the one at i.
template <class V>
ATOLL_INLINE V LoadSixteen(const void* data, Encoding encoding, int64_t i) {
  return encoding == Encoding::kFloat32
             ? simd::Load<V>(static_cast<const float*>(data) + i)
             : simd::FromBfloat16<V>(static_cast<const Bfloat16*>(data) + i);
}
inline float LoadOne(const void* data, Encoding encoding, int64_t i) {
  return encoding == Encoding::kFloat32 ? static_cast<const float*>(data)[i]
                                        : WidenBfloat16(static_cast<const Bfloat16*>(data)[i]);
}

// Numbers of f32 or bf16 with their weight.
struct Plain {
  const void* data;
  Encoding encoding;
  float weight;
};

// Numbers begin to begin + n of a delta: where they lie, or, of a quantised one, decoded into
// `decoded`. REQUIRES: begin is a multiple of its block.
inline Plain PlainFrom(const DeltaView& delta, float weight, int64_t begin, int64_t n,
                       float* decoded) {
  const auto* bytes = static_cast<const std::byte*>(delta.data);
  bytes += EncodedBytes(delta.encoding, begin);
  if (!IsQuantized(delta.encoding)) return {bytes, delta.encoding, weight};
  GetCodec(delta.encoding).decode(bytes, decoded, n);
  return {decoded, Encoding::kFloat32, weight};
}

// Returns the numbers n elements further on.
inline Plain Behind(const Plain& p, int64_t n) {
  return {static_cast<const std::byte*>(p.data) + EncodedBytes(p.encoding, n), p.encoding,
          p.weight};
}

inline int64_t SelectTileSize(int64_t block) { return block > kTile ? kTileMax : kTile; }

inline void CheckSize(const DeltaView& delta, int64_t size) {
  ATOLL_CHECK(delta.size == size, "a delta of ", delta.size, " numbers for ", size);
}

}  // namespace atl

#endif  // ATOLL_KERNELS_HOST_OPS_IMPL_H_
