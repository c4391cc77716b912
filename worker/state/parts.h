// Parts of a layer's shard: parameters and moments; or elements of a layer of what its owner keeps
// for the parameter servers (worker/outer/outer_state.h).

#ifndef ATOLL_WORKER_STATE_PARTS_H_
#define ATOLL_WORKER_STATE_PARTS_H_

#include <bit>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/model/tensor_part.h"
#include "proto/group.plain.h"
#include "worker/outer/outer_state.h"

namespace atl::worker {

// "layer 3", "rank 1 of layer 3".
inline std::string ToString(const LayerShard& shard) {
  const std::string layer = absl::StrCat("layer ", shard.layer);
  return shard.tensor_split_ratios.size() == 1 ? layer
                                               : absl::StrCat("rank ", shard.rank, " of ", layer);
}

// Parts to be read or written; empty: not wanted.
struct ShardParts {
  std::span<float> parameters, first_moment, second_moment;
  std::span<float> outer = {};  // one of an owner's, and which
  int32_t outer_part = 0;
};

// The parts that are wanted: 0 to 2 by LayerPart, then an owner's by OuterKind.
using PartMap = std::map<int32_t, std::span<float>>;
inline PartMap ToPartMap(const ShardParts& parts) {
  PartMap all;
  if (!parts.parameters.empty()) all[0] = parts.parameters;
  if (!parts.first_moment.empty()) all[1] = parts.first_moment;
  if (!parts.second_moment.empty()) all[2] = parts.second_moment;
  if (!parts.outer.empty()) all[parts.outer_part] = parts.outer;
  return all;
}

// These elements of those among `parts` (as bits) that are of a device's state.
inline ShardParts SliceParts(const ShardParts& all, int32_t parts, Range elements) {
  const auto slice = [&](std::span<float> values, int part) -> std::span<float> {
    if ((parts & (1 << part)) == 0 || values.empty()) return {};
    return values.subspan(static_cast<size_t>(elements.begin),
                          static_cast<size_t>(elements.size()));
  };
  return {slice(all.parameters, 0), slice(all.first_moment, 1), slice(all.second_moment, 2)};
}

// Returns the parts as bits: part p is 1 << p.
inline int32_t MakePartMask(const ShardParts& parts) {
  int32_t wanted = 0;
  for (const auto& [part, values] : ToPartMap(parts)) wanted |= 1 << part;
  return wanted;
}
// Returns the bytes of the parts of so many elements.
inline int64_t CountBytes(int64_t elements, int32_t wanted) {
  return 4 * elements * std::popcount(static_cast<uint32_t>(wanted));
}
inline constexpr int32_t kParametersPart = 1;
inline constexpr int32_t kAllParts = 7;  // of a device's state
inline constexpr int kFirstOuterPart = 3;
inline constexpr int kPartsMax = kFirstOuterPart + static_cast<int>(kLastOuterKind) + 1;
inline constexpr int32_t kOuterParts = (1 << kPartsMax) - (1 << kFirstOuterPart);  // an owner's

inline int32_t GetOuterPart(OuterKind kind) { return kFirstOuterPart + static_cast<int32_t>(kind); }
// Returns the kind of the one bit that is set.
inline OuterKind OuterKindFromPartMask(int32_t wanted) {
  return static_cast<OuterKind>(std::countr_zero(static_cast<uint32_t>(wanted)) - kFirstOuterPart);
}

// Parts with memory of their own.
class OwnedParts {
 public:
  OwnedParts(int64_t elements, int32_t wanted) {
    const auto size = static_cast<size_t>(elements);
    std::span<float>* const spans[] = {&parts_.parameters, &parts_.first_moment,
                                       &parts_.second_moment};
    for (int part = 0; part < kPartsMax; ++part) {
      if ((wanted & (1 << part)) == 0) continue;
      values_[part].resize(size);
      if (part < kFirstOuterPart) {
        *spans[part] = values_[part];
      } else {
        parts_.outer = values_[part];
        parts_.outer_part = part;
      }
    }
  }
  OwnedParts(const OwnedParts&) = delete;
  OwnedParts& operator=(const OwnedParts&) = delete;

  const ShardParts& parts() const { return parts_; }

 private:
  std::vector<float> values_[kPartsMax];
  ShardParts parts_;
};

}  // namespace atl::worker

#endif  // ATOLL_WORKER_STATE_PARTS_H_
