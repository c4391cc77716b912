#include "worker/runtime/delta.h"

#include <span>

#include "kernels/deltas.h"

namespace atl::worker {

bool Fits(const LayerBuffers& buffers, const ShardPlacement& shard) {
  if (shard.layer < 0 || shard.layer >= static_cast<int64_t>(buffers.size())) return false;
  const int64_t size = static_cast<int64_t>(buffers[shard.layer].size());
  return shard.begin >= 0 && shard.elements >= 0 && shard.begin <= size - shard.elements;
}

absl::Status Quantize(Encoding encoding, const std::vector<ShardPlacement>& shards,
                      LayerBuffers* residual, ThreadPool& pool, Delta* delta) {
  for (const ShardPlacement& shard : shards) {
    if (Fits(delta->values, shard)) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("shard ", shard.shard, " does not lie within the model"));
  }
  delta->encoding = encoding;
  for (const ShardPlacement& shard : shards) {
    std::vector<std::byte>& bytes = delta->encoded[shard.shard];
    bytes.resize(EncodedBytes(encoding, shard.elements));
    const auto at = [&](std::vector<float>& layer) {
      return std::span(layer).subspan(shard.begin, shard.elements);
    };
    EncodeDelta(encoding, at(delta->values[shard.layer]), at((*residual)[shard.layer]), bytes,
                pool);
  }
  return absl::OkStatus();
}

}  // namespace atl::worker
