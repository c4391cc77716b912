// How many contributions one outer round is made of at most: what the servers' kernels take at
// once.

#ifndef ATOLL_COMMON_PROTOCOL_ROUND_LIMIT_H_
#define ATOLL_COMMON_PROTOCOL_ROUND_LIMIT_H_

#include <cstddef>

namespace atl {

inline constexpr size_t kMaxContributions = 64;

}  // namespace atl

#endif  // ATOLL_COMMON_PROTOCOL_ROUND_LIMIT_H_
