#include "worker/outer/delta.h"

#include <algorithm>

#include "kernels/deltas.h"

namespace atl::worker {

absl::Status EncodeParts(Encoding encoding, const std::vector<ShardPlacement>& shards,
                         const LayerParts& parts, Delta* delta, const EncodePart& work) {
  delta->encoding = encoding;
  for (const ShardPlacement& shard : shards) {
    for (size_t p = 0; p < parts.size(); ++p) {
      const ElementRange& have = parts[p].range;
      const ElementRange in{std::max(have.begin, shard.begin),
                            std::min(have.end, shard.begin + shard.elements)};
      if (parts[p].layer != shard.layer || in.size() <= 0) continue;
      const int64_t begin = in.begin - shard.begin, end = in.end - shard.begin;
      const int64_t block = PartBlock(encoding);
      if (begin % block != 0 || (end % block != 0 && end != shard.elements)) {
        return absl::InvalidArgumentError(
            absl::StrCat("a part of shard ", shard.shard, " cuts a block"));
      }
      std::vector<std::byte>& bytes = delta->encoded[shard.shard];
      bytes.resize(static_cast<size_t>(EncodedBytes(encoding, shard.elements)));
      const auto first = static_cast<size_t>(EncodedBytes(encoding, begin));
      const auto last = static_cast<size_t>(EncodedBytes(encoding, end));
      ATOLL_RETURN_IF_ERROR(work(p, in, std::span(bytes).subspan(first, last - first)));
    }
  }
  return absl::OkStatus();
}

absl::Status Quantize(Encoding encoding, const std::vector<ShardPlacement>& shards,
                      const LayerParts& parts, LayerBuffers* residual, ThreadPool& pool,
                      Delta* delta, const std::function<bool()>& cancelled) {
  return EncodeParts(
      encoding, shards, parts, delta,
      [&](size_t p, ElementRange range, std::span<std::byte> bytes) -> absl::Status {
        if (cancelled && cancelled()) return absl::AbortedError("interrupted");
        const auto at = [&](std::vector<float>& part) {
          return std::span(part).subspan(static_cast<size_t>(range.begin - parts[p].range.begin),
                                         static_cast<size_t>(range.size()));
        };
        EncodeDelta(encoding, at(delta->values[p]),
                    residual == nullptr ? std::span<float>() : at((*residual)[p]), bytes, pool);
        return absl::OkStatus();
      });
}

}  // namespace atl::worker
