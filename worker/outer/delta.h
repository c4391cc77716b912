// One contribution as it is pushed, and what its quantising leaves for the next one.

#ifndef ATOLL_WORKER_OUTER_DELTA_H_
#define ATOLL_WORKER_OUTER_DELTA_H_

#include <cstddef>
#include <functional>
#include <map>
#include <span>
#include <vector>

#include "common/element_ranges.h"
#include "common/ids.h"
#include "common/protocol/control.h"
#include "common/status.h"
#include "common/thread_pool.h"
#include "proto/group.plain.h"

namespace atl::worker {

// One flat vector per part.
using LayerBuffers = std::vector<std::vector<float>>;

// Elements of layers, of which buffers hold a vector each.
using LayerParts = std::vector<OuterRange>;

// Finds these elements of a layer in buffers of the parts; empty: no single part has them all.
template <class Buffers>
auto FindElements(Buffers& buffers, const LayerParts& parts, int32_t layer, ElementRange range) {
  for (size_t p = 0; p < parts.size(); ++p) {
    const ElementRange& has = parts[p].range;
    if (parts[p].layer != layer || range.begin < has.begin || range.end > has.end) continue;
    if (range.end <= range.begin) continue;
    return std::span(buffers[p])
        .subspan(static_cast<size_t>(range.begin - has.begin), static_cast<size_t>(range.size()));
  }
  return decltype(std::span(buffers[0]))();
}

struct PulledMoments {
  LayerBuffers first, second;
};

struct Delta {
  LayerBuffers values;  // theta_base - theta at the push; of the initial weights: theta
  // For a quantised contribution and one with moments, the bytes of every shard; elements that are
  // not owned stay 0. Made once, so that a push repeated is the same push; blocks begin at a
  // shard's begin.
  Encoding encoding = Encoding::kFloat32;
  std::map<ShardId, std::vector<std::byte>> encoded;
};

// Calls work(part's index, its elements of the layer, bytes of the shard's that they are) for what
// the parts have of each shard, whose bytes it makes room for. Its first error, or InvalidArgument:
// a part cuts a block.
using EncodePart =
    std::function<absl::Status(size_t part, ElementRange range, std::span<std::byte> bytes)>;
absl::Status EncodeParts(Encoding encoding, const std::vector<ShardPlacement>& shards,
                         const LayerParts& parts, Delta* delta, const EncodePart& work);

// Makes delta->encoded of values + residual, and residual of the rounding error, of what the parts
// have of each shard; moments that are there stay. InvalidArgument: a part cuts a block. Aborted:
// `cancelled`, which is called for each part and may be null, said so. REQUIRES: residual (null:
// none is kept) and values are of these parts.
absl::Status Quantize(Encoding encoding, const std::vector<ShardPlacement>& shards,
                      const LayerParts& parts, LayerBuffers* residual, ThreadPool& pool,
                      Delta* delta, const std::function<bool()>& cancelled = nullptr);

}  // namespace atl::worker

#endif  // ATOLL_WORKER_OUTER_DELTA_H_
