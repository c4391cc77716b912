// Limits of numbers, lists and texts in messages and records. The .proto files name them;
// third_party generates the checks (proto/plain.proto), so that cores count with what is within
// them.

#ifndef ATOLL_COMMON_PROTOCOL_LIMITS_H_
#define ATOLL_COMMON_PROTOCOL_LIMITS_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>

namespace atl {

inline constexpr int64_t kMaxInt = std::numeric_limits<int64_t>::max();
inline constexpr int64_t kMinInt = std::numeric_limits<int64_t>::min();
// Limits of numbers whose field states none. Each is far beyond what is counted in practice, and so
// far below its type's that a thousand of them can be added.
inline constexpr int64_t kMaxNumber = int64_t{1} << 53;
inline constexpr int64_t kMaxNumber32 = 1 << 30;
inline constexpr int64_t kMaxIsland = 1 << 20;
inline constexpr int64_t kMaxShards = 1 << 20;
inline constexpr int64_t kMaxElements = int64_t{1} << 48;
inline constexpr int64_t kMaxVersion = int64_t{1} << 40;
inline constexpr int64_t kMaxGeneration = int64_t{1} << 52;
inline constexpr int64_t kMaxEpoch = int64_t{1} << 30;  // sequences have it in their upper half
inline constexpr int64_t kMaxSequence = kMaxEpoch << 32;
inline constexpr int64_t kMaxNameBytes = 256;
// Layers times experts: each has a few names and shapes in memory wherever there is a plan.
inline constexpr int64_t kMaxExpertsOfModel = int64_t{1} << 17;
inline constexpr int kMaxListLength = 1 << 20;
inline constexpr size_t kMaxTextBytes = 64 << 10;
inline constexpr int64_t kMaxIntervalNs = int64_t{24} * 3600 * 1'000'000'000;

// The sum of what is counted, which stays storable. REQUIRES: 0 to kMaxNumber each.
constexpr int64_t AddCounts(int64_t a, int64_t b) { return std::min(kMaxNumber, a + b); }

}  // namespace atl

#endif  // ATOLL_COMMON_PROTOCOL_LIMITS_H_
