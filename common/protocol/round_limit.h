// How many contributions one outer round is made of at most. Servers' statistics of k of them are a
// matrix of k^2 products. Where the merge looks at each layer by itself there is one a layer, which
// bounds k by memory and messages. A merge by the mean needs their sum alone.

#ifndef ATOLL_COMMON_PROTOCOL_ROUND_LIMIT_H_
#define ATOLL_COMMON_PROTOCOL_ROUND_LIMIT_H_

#include <cstddef>

namespace atl {

inline constexpr size_t kMaxContributions = 512;
inline constexpr size_t kMaxContributionsByLayer = 64;

// Returns whether statistics of so many contributions are a matrix a layer; else one of all layers
// together, as layer 0.
inline constexpr bool HasStatisticsByLayer(size_t contributions) {
  return contributions <= kMaxContributionsByLayer;
}

}  // namespace atl

#endif  // ATOLL_COMMON_PROTOCOL_ROUND_LIMIT_H_
