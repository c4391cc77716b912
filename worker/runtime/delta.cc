#include "worker/runtime/delta.h"

#include <cstring>

#include "kernels/deltas.h"

namespace atl::worker {

bool Fits(const LayerBuffers& buffers, const ShardPlacement& shard) {
  if (shard.layer < 0 || shard.layer >= static_cast<int64_t>(buffers.size())) return false;
  const int64_t size = static_cast<int64_t>(buffers[shard.layer].size());
  return shard.begin >= 0 && shard.elements >= 0 && shard.begin <= size - shard.elements;
}

absl::Status CheckShards(const LayerBuffers& buffers, const std::vector<ShardPlacement>& shards) {
  for (const ShardPlacement& shard : shards) {
    if (Fits(buffers, shard)) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("shard ", shard.shard, " does not lie within the model"));
  }
  return absl::OkStatus();
}

absl::Status Quantize(Encoding encoding, const std::vector<ShardPlacement>& shards,
                      LayerBuffers* residual, ThreadPool& pool, Delta* delta) {
  ATOLL_RETURN_IF_ERROR(CheckShards(delta->values, shards));
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

namespace {

size_t PackedSize(const Delta& delta) {
  size_t bytes = 0;
  for (const auto& [shard, encoded] : delta.encoded) bytes += encoded.size();
  return (bytes + sizeof(float) - 1) / sizeof(float);
}

}  // namespace

std::vector<float> Packed(const Delta& delta) {
  std::vector<float> packed(PackedSize(delta));
  auto* to = reinterpret_cast<std::byte*>(packed.data());
  for (const auto& [shard, encoded] : delta.encoded) {
    std::memcpy(to, encoded.data(), encoded.size());
    to += encoded.size();
  }
  return packed;
}

absl::Status Unpack(std::span<const float> packed, Delta* delta) {
  if (packed.size() != PackedSize(*delta)) {
    return absl::InvalidArgumentError("an encoded delta of another size than the shards'");
  }
  const auto* from = reinterpret_cast<const std::byte*>(packed.data());
  for (auto& [shard, encoded] : delta->encoded) {
    std::memcpy(encoded.data(), from, encoded.size());
    from += encoded.size();
  }
  return absl::OkStatus();
}

}  // namespace atl::worker
