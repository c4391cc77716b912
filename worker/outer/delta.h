// One contribution as it is pushed, and what its quantising leaves for the next one.

#ifndef ATOLL_WORKER_OUTER_DELTA_H_
#define ATOLL_WORKER_OUTER_DELTA_H_

#include <cstddef>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <vector>

#include "common/element_ranges.h"
#include "common/ids.h"
#include "common/protocol/control.h"
#include "common/status.h"
#include "common/thread_pool.h"
#include "proto/group.plain.h"

namespace atl::worker {

// One flat vector per layer, or per part of one.
using LayerBuffers = std::vector<std::vector<float>>;

// Elements of layers, of which buffers hold a vector each.
using LayerParts = std::vector<OuterRange>;

struct PartPosition {
  size_t part = 0;
  size_t offset = 0;
};
// Finds where these elements of a layer lie; none: no single part has them all.
std::optional<PartPosition> FindPartPosition(const LayerParts& parts, int32_t layer,
                                             ElementRange range);
// The same in buffers of these parts, or, without, of whole layers: as many floats, or none.
std::span<float> FindElements(LayerBuffers& buffers, const LayerParts* parts, int32_t layer,
                              ElementRange range);

struct Delta {
  LayerBuffers values;  // theta_base - theta at the push; of the initial weights: theta
  // For a quantised contribution, the bytes of every shard; elements that are not owned stay 0.
  // Made once, so that a push repeated is the same push; blocks begin at a shard's begin.
  Encoding encoding = Encoding::kFloat32;
  std::map<ShardId, std::vector<std::byte>> encoded;
};

// Makes delta->encoded of values + residual, and residual of the rounding error, of what the parts
// have of each shard. InvalidArgument: a shard does not fit (without parts), or a part cuts a
// block. Aborted: `cancelled`, which is called for each part and may be null, said so. REQUIRES:
// residual has the values' sizes.
absl::Status Quantize(Encoding encoding, const std::vector<ShardPlacement>& shards,
                      LayerBuffers* residual, ThreadPool& pool, Delta* delta,
                      const LayerParts* parts = nullptr,
                      const std::function<bool()>& cancelled = nullptr);

}  // namespace atl::worker

#endif  // ATOLL_WORKER_OUTER_DELTA_H_
