// Parts of a layer's shard: parameters and moments.

#ifndef ATOLL_WORKER_GROUP_PARTS_H_
#define ATOLL_WORKER_GROUP_PARTS_H_

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <vector>

namespace atl::worker {

// To be got or set; empty: not wanted.
struct ShardParts {
  std::span<float> parameters, first_moment, second_moment;
};

// Those that are wanted, by LayerPart.
using PartMap = std::map<int32_t, std::span<float>>;
inline PartMap PartsOf(const ShardParts& parts) {
  PartMap all;
  if (!parts.parameters.empty()) all[0] = parts.parameters;
  if (!parts.first_moment.empty()) all[1] = parts.first_moment;
  if (!parts.second_moment.empty()) all[2] = parts.second_moment;
  return all;
}

// As bits: part p is 1 << p.
inline int32_t WantedOf(const ShardParts& parts) {
  int32_t wanted = 0;
  for (const auto& [part, values] : PartsOf(parts)) wanted |= 1 << part;
  return wanted;
}
inline constexpr int32_t kAllParts = 7;

// Parts with memory of their own.
class OwnedParts {
 public:
  OwnedParts(int64_t elements, int32_t wanted) {
    const auto size = static_cast<size_t>(elements);
    std::span<float>* const spans[] = {&parts_.parameters, &parts_.first_moment,
                                       &parts_.second_moment};
    for (int part = 0; part < 3; ++part) {
      if ((wanted & (1 << part)) == 0) continue;
      values_[part].resize(size);
      *spans[part] = values_[part];
    }
  }
  static std::shared_ptr<const OwnedParts> CopyOf(const ShardParts& from) {
    const PartMap parts = PartsOf(from);
    const auto copy = std::make_shared<OwnedParts>(
        static_cast<int64_t>(parts.begin()->second.size()), WantedOf(from));
    for (const auto& [part, to] : PartsOf(copy->parts())) {
      std::copy(parts.at(part).begin(), parts.at(part).end(), to.begin());
    }
    return copy;
  }
  OwnedParts(const OwnedParts&) = delete;
  OwnedParts& operator=(const OwnedParts&) = delete;

  const ShardParts& parts() const { return parts_; }

 private:
  std::vector<float> values_[3];
  ShardParts parts_;
};

}  // namespace atl::worker

#endif  // ATOLL_WORKER_GROUP_PARTS_H_
