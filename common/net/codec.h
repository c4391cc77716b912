// Tensors as bytes: fp32 or bf16, little endian, with XXH3-64 checksums.
//
// Each function goes over its bytes once, in blocks that stay in the first-level cache, so that the
// checksum costs no second trip to memory. Pure.

#ifndef ATOLL_COMMON_NET_CODEC_H_
#define ATOLL_COMMON_NET_CODEC_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include "absl/functional/function_ref.h"
#include "common/ids.h"

namespace atl {

// All of them REQUIRE an encoding that is not quantised, and bytes.size() == values.size() *
// BytesPerElement(encoding).

// fp32 to bf16 rounds to nearest, ties to even; NaN stays NaN.
void EncodeTensor(Encoding encoding, std::span<const float> values, std::span<std::byte> bytes);

// The same, and the checksum of `bytes`.
uint64_t EncodeAndHash(Encoding encoding, std::span<const float> values,
                       std::span<std::byte> bytes);

// Copies `from` to `to` and returns the checksum. REQUIRES: equal sizes, no overlap.
uint64_t CopyAndHash(std::span<const std::byte> from, std::span<std::byte> to);

// Calls use(begin, end) for ranges of the bytes, in order, each while it is still in the cache;
// returns the checksum. Ranges begin at multiples of 8,192 bytes.
uint64_t HashWhile(std::span<const std::byte> bytes, absl::FunctionRef<void(size_t, size_t)> use);

uint64_t Hash(std::span<const std::byte> bytes);

}  // namespace atl

#endif  // ATOLL_COMMON_NET_CODEC_H_
