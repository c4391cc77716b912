// Pseudo-gradients as they travel: what the bytes of each Encoding mean, and quantising.
//
// kInt8 and kInt4: blocks of kQuantBlock numbers, the last one of what is left. A block is its
// scale (f32) and then its codes: a signed byte each, -127 to 127; or code + 8 in four bits each,
// -7 to 7, the first of two in the low half of a byte. number = code * scale, in f32. A block of
// which some number is not finite has the scale NaN: it is seen where it arrives.
//
// EncodeDelta and the operation QuantizeDelta (ops.h) make the same codes, scales and residuals bit
// for bit, on every instruction set (but for denormal numbers, which whole blocks flush to zero
// here); they differ in how codes and scales lie.

#ifndef ATOLL_KERNELS_DELTAS_H_
#define ATOLL_KERNELS_DELTAS_H_

#include <cstddef>
#include <span>

#include "common/ids.h"
#include "common/status.h"
#include "kernels/thread_pool.h"

namespace atl {

// `size` numbers that lie, encoded, in memory of somebody else: EncodedBytes(encoding, size) bytes
// of any alignment.
struct DeltaView {
  const void* data = nullptr;
  Encoding encoding = Encoding::kFloat32;
  int64_t size = 0;
};

// Quantises delta + residual into `out`, and leaves in `residual` what was rounded away: the next
// call makes up for it (error feedback). Residuals of a block that is not finite become 0. An empty
// residual: none is added or kept. One pass over memory. REQUIRES: a quantised encoding, equal
// sizes, out.size() == EncodedBytes(encoding, delta.size()).
void EncodeDelta(Encoding encoding, std::span<const float> delta, std::span<float> residual,
                 std::span<std::byte> out, ThreadPool& pool);

// REQUIRES: a quantised encoding, out.size() == delta.size.
void DecodeDelta(const DeltaView& delta, std::span<float> out, ThreadPool& pool);

// InvalidArgument: a scale that no encoder makes: negative, infinite, or so large that a code times
// it is. Of quantised encodings; OK for others.
absl::Status CheckScales(const DeltaView& delta);

}  // namespace atl

#endif  // ATOLL_KERNELS_DELTAS_H_
