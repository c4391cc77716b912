// Pseudo-gradients as they are transferred: encoding (with error feedback), decoding and checking
// them with the codec of their Encoding (kernels/codecs/), over the threads of a pool.

#ifndef ATOLL_KERNELS_DELTAS_H_
#define ATOLL_KERNELS_DELTAS_H_

#include <cstddef>
#include <span>

#include "common/ids.h"
#include "common/status.h"
#include "common/thread_pool.h"

namespace atl {

// `size` numbers that lie, encoded, in memory of another owner: EncodedBytes(encoding, size) bytes
// of any alignment.
struct DeltaView {
  const void* data = nullptr;
  Encoding encoding = Encoding::kFloat32;
  int64_t size = 0;
};

// Encodes delta + residual into `out`, and leaves in `residual` what got lost: the next call makes
// up for it (error feedback). Residuals of a block that is not finite become 0. An empty residual:
// none is added or kept. One pass over memory. REQUIRES: a quantised encoding, equal sizes,
// out.size() == EncodedBytes(encoding, delta.size()).
void EncodeDelta(Encoding encoding, std::span<const float> delta, std::span<float> residual,
                 std::span<std::byte> out, ThreadPool& pool);

// REQUIRES: a quantised encoding, out.size() == delta.size.
void DecodeDelta(const DeltaView& delta, std::span<float> out, ThreadPool& pool);

// InvalidArgument: bytes that no encoder makes (Codec::check). Of quantised encodings; OK for
// others.
absl::Status CheckDelta(const DeltaView& delta);

}  // namespace atl

#endif  // ATOLL_KERNELS_DELTAS_H_
