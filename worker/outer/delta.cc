#include "worker/outer/delta.h"

#include <algorithm>

#include "kernels/deltas.h"

namespace atl::worker {

std::optional<PartPosition> FindPartPosition(const LayerParts& parts, int32_t layer,
                                             ElementRange range) {
  for (size_t p = 0; p < parts.size(); ++p) {
    const OuterRange& part = parts[p];
    if (part.layer != layer || range.begin < part.range.begin || range.end > part.range.end ||
        range.end < range.begin) {
      continue;
    }
    return PartPosition{p, static_cast<size_t>(range.begin - part.range.begin)};
  }
  return std::nullopt;
}

std::span<float> FindElements(LayerBuffers& buffers, const LayerParts* parts, int32_t layer,
                              ElementRange range) {
  if (range.begin < 0 || range.end <= range.begin) return {};
  PartPosition position;
  if (parts != nullptr) {
    const std::optional<PartPosition> found = FindPartPosition(*parts, layer, range);
    if (!found) return {};
    position = *found;
  } else {
    if (layer < 0 || layer >= static_cast<int64_t>(buffers.size())) return {};
    position = {static_cast<size_t>(layer), static_cast<size_t>(range.begin)};
  }
  if (position.part >= buffers.size()) return {};
  const std::span<float> all = buffers[position.part];
  const auto size = static_cast<size_t>(range.size());
  if (position.offset > all.size() || size > all.size() - position.offset) return {};
  return all.subspan(position.offset, size);
}

absl::Status Quantize(Encoding encoding, const std::vector<ShardPlacement>& shards,
                      LayerBuffers* residual, ThreadPool& pool, Delta* delta,
                      const LayerParts* parts, const std::function<bool()>& cancelled) {
  LayerParts layers;
  for (size_t l = 0; l < delta->values.size() && parts == nullptr; ++l) {
    layers.push_back({static_cast<int32_t>(l), {0, std::ssize(delta->values[l])}});
  }
  const LayerParts& all = parts == nullptr ? layers : *parts;
  for (const ShardPlacement& shard : shards) {
    if (parts != nullptr) continue;
    if (FindPartPosition(all, shard.layer, {shard.begin, shard.begin + shard.elements})) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("shard ", shard.shard, " does not lie within the model"));
  }
  delta->encoding = encoding;
  delta->encoded.clear();
  for (const ShardPlacement& shard : shards) {
    for (size_t p = 0; p < all.size(); ++p) {
      const ElementRange& have = all[p].range;
      const ElementRange in{std::max(have.begin, shard.begin),
                            std::min(have.end, shard.begin + shard.elements)};
      if (all[p].layer != shard.layer || in.size() <= 0) continue;
      if (cancelled && cancelled()) return absl::AbortedError("interrupted");
      const int64_t begin = in.begin - shard.begin, end = in.end - shard.begin;
      const int64_t block = PartBlock(encoding);
      if (begin % block != 0 || (end % block != 0 && end != shard.elements)) {
        return absl::InvalidArgumentError(
            absl::StrCat("a part of shard ", shard.shard, " cuts a block"));
      }
      std::vector<std::byte>& bytes = delta->encoded[shard.shard];
      bytes.resize(static_cast<size_t>(EncodedBytes(encoding, shard.elements)));
      const auto at = [&](std::vector<float>& part) {
        return std::span(part).subspan(static_cast<size_t>(in.begin - have.begin),
                                       static_cast<size_t>(in.size()));
      };
      const auto first = static_cast<size_t>(EncodedBytes(encoding, begin));
      const auto last = static_cast<size_t>(EncodedBytes(encoding, end));
      EncodeDelta(encoding, at(delta->values[p]), at((*residual)[p]),
                  std::span(bytes).subspan(first, last - first), pool);
    }
  }
  return absl::OkStatus();
}

}  // namespace atl::worker
