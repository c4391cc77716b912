// A quantised step added to what it belongs to, and averages of moments. Servers and islands, and
// all servers, must get the same bits: the codes become fp32 numbers first, which are then added,
// without fused operations.

#ifndef ATOLL_KERNELS_ADD_DELTA_H_
#define ATOLL_KERNELS_ADD_DELTA_H_

#include <span>

#include "common/thread_pool.h"
#include "kernels/deltas.h"

namespace atl {

// out = base + delta; out may be base. REQUIRES: a quantised encoding, equal sizes.
void AddDelta(const DeltaView& delta, std::span<const float> base, std::span<float> out,
              ThreadPool& pool);

// Encodes target - values into `step` and adds that to `values`, as AddDelta does: what rounding
// leaves out stays in the difference. REQUIRES: a quantised encoding, equal sizes.
void StepToward(Encoding encoding, std::span<const float> target, std::span<float> values,
                std::span<std::byte> step, ThreadPool& pool);

// ratios = sum of weight * u, second = sum of weight * v (kernels/codecs/moments.h), in double.
// REQUIRES: encodings with moments, equal sizes, a weight for each.
void AverageMoments(std::span<const DeltaView> deltas, std::span<const double> weights,
                    std::span<float> ratios, std::span<float> second, ThreadPool& pool);

}  // namespace atl

#endif  // ATOLL_KERNELS_ADD_DELTA_H_
