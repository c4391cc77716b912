// The parameter server's arithmetic (the DiLoCo outer step), on plain host memory: no Backend is
// needed. Work is split into blocks of fixed size whose partial results are joined in order, so
// every result is the same for any number of threads of the pool. Arrays need no alignment.

#ifndef ATOLL_KERNELS_HOST_OPS_H_
#define ATOLL_KERNELS_HOST_OPS_H_

#include <span>

#include "common/thread_pool.h"
#include "kernels/deltas.h"
#include "kernels/tensor.h"

namespace atl {

struct WeightedDelta {
  DeltaView delta;
  float weight = 0;
};

// At most this many deltas in one call of an outer step or GramMatrix: a round's contributions and
// a slot.
inline constexpr int kMaxDeltas = 513;

// One outer step on a shard, every byte moved once: g = sum of weight_i * delta_i, and then
//   Sgd:      theta = theta - eta * g.
//   Nesterov: velocity = mu * velocity + g;  theta = theta - eta * (g + mu * velocity).
//   DelayedNesterov: sum = sum + share * g;  theta = theta - eta * share * g;  and if `last`:
//             momentum = mu * momentum + sum;  theta = theta - eta * mu * momentum;  sum = 0.
// Token weights and the clip scale are already in the weights.
// REQUIRES: all sizes equal, 0 to kMaxDeltas deltas (none: g = 0), of any encoding each: quantised
// ones give the same bits as the f32 numbers that they decode to.
void OuterSgd(std::span<float> theta, std::span<const WeightedDelta> deltas, float eta,
              ThreadPool& pool);
void OuterNesterov(std::span<float> theta, std::span<float> velocity,
                   std::span<const WeightedDelta> deltas, float eta, float mu, ThreadPool& pool);
void OuterDelayedNesterov(std::span<float> theta, std::span<float> momentum, std::span<float> sum,
                          std::span<const WeightedDelta> deltas, float eta, float mu, float share,
                          bool last, ThreadPool& pool);

// gram[i * k + j] = dot(delta_i, delta_j) of the decoded numbers, summed in double; symmetric. Not
// finite where a delta is not. Many deltas are taken in blocks, which bounds the memory; a product
// has the same bits in any block. REQUIRES: k = deltas.size() <= kMaxDeltas, gram.size() == k * k,
// sizes equal.
void GramMatrix(std::span<const DeltaView> deltas, std::span<double> gram, ThreadPool& pool);

// Rounds to nearest even; a NaN stays a NaN. REQUIRES: equal sizes.
void ToBfloat16(std::span<const float> from, std::span<Bfloat16> to, ThreadPool& pool);

}  // namespace atl

#endif  // ATOLL_KERNELS_HOST_OPS_H_
