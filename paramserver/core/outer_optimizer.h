// The DiLoCo outer step on one shard: how an outer optimizer changes parameters and state slots by
// a round's pseudo-gradient. common/protocol/outer_optimizer.h names each with its slots and
// parameters; here is what it does. Each step is one fused kernel of kernels/host_ops.h.
// Deterministic: a replayed log gives the same bits.

#ifndef ATOLL_PARAMSERVER_CORE_OUTER_OPTIMIZER_H_
#define ATOLL_PARAMSERVER_CORE_OUTER_OPTIMIZER_H_

#include <memory>
#include <span>
#include <vector>

#include "common/ids.h"
#include "common/protocol/job_spec.h"
#include "common/thread_pool.h"
#include "kernels/host_ops.h"

namespace atl::ps {

struct OuterShard {
  std::span<float> theta;
  std::vector<std::span<float>> slots;  // as the optimizer's table names them, sizes as theta
};

struct OuterRound {
  std::span<const WeightedDelta> deltas;  // their sum is the pseudo-gradient
  double learning_rate = 0;
  double momentum = 0;
  Version version = 0;  // that the round makes, from 1 on
};

class OuterOptimizer {
 public:
  virtual ~OuterOptimizer() = default;
  virtual void Step(const OuterShard& shard, const OuterRound& round, ThreadPool& pool) const = 0;
};

// REQUIRES: ValidateOuterChoice(spec).
std::unique_ptr<OuterOptimizer> MakeOuterOptimizer(const OuterSpec& spec);

}  // namespace atl::ps

#endif  // ATOLL_PARAMSERVER_CORE_OUTER_OPTIMIZER_H_
