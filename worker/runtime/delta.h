// One contribution as it is pushed, and what its quantising leaves for the next one.

#ifndef ATOLL_WORKER_RUNTIME_DELTA_H_
#define ATOLL_WORKER_RUNTIME_DELTA_H_

#include <cstddef>
#include <map>
#include <span>
#include <vector>

#include "common/ids.h"
#include "common/protocol/control.h"
#include "common/status.h"
#include "kernels/thread_pool.h"

namespace atl::worker {

// One flat vector per layer.
using LayerBuffers = std::vector<std::vector<float>>;

// Whether the shard lies within the buffers.
bool Fits(const LayerBuffers& buffers, const ShardPlacement& shard);

struct Delta {
  LayerBuffers values;  // theta_base - theta at the push; of the initial weights: theta
  // Of a quantised contribution, the bytes of every shard. Made once, so that a push repeated is
  // the same push; blocks begin at a shard's begin.
  Encoding encoding = Encoding::kFloat32;
  std::map<ShardId, std::vector<std::byte>> encoded;
};

// InvalidArgument: a shard does not fit.
absl::Status CheckShards(const LayerBuffers& buffers, const std::vector<ShardPlacement>& shards);

// Makes delta->encoded of values + residual, and residual of what was rounded away.
// InvalidArgument: a shard does not fit, and nothing has changed. REQUIRES: residual has the
// values' sizes.
absl::Status Quantize(Encoding encoding, const std::vector<ShardPlacement>& shards,
                      LayerBuffers* residual, ThreadPool& pool, Delta* delta);

// The encoded bytes of all shards by their numbers, as they travel between workers: padded to whole
// floats, whose bits nobody looks at.
std::vector<float> Packed(const Delta& delta);
// Into encoded, whose sizes are there. InvalidArgument: they are of another size.
absl::Status Unpack(std::span<const float> packed, Delta* delta);

}  // namespace atl::worker

#endif  // ATOLL_WORKER_RUNTIME_DELTA_H_
