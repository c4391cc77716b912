#include "common/net/codec.h"

#include <algorithm>
#include <bit>
#include <cstring>

#define XXH_STATIC_LINKING_ONLY  // a state on the stack
#include <xxhash.h>
#ifdef __x86_64__
#include <xxh_x86dispatch.h>  // the same functions, for the widest vectors that the processor has
#endif

#include "common/check.h"

namespace atl {
namespace {

static_assert(std::endian::native == std::endian::little, "messages are little endian");

constexpr size_t kBlockBytes = 8 << 10;  // two of them fit in any first-level cache

[[gnu::always_inline]] inline uint16_t ToBfloat16(float value) {
  uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
  const uint32_t quiet_nan = (bits >> 16) | 0x40;
  return static_cast<uint16_t>((bits & 0x7fffffff) > 0x7f800000 ? quiet_nan : rounded);
}

// Payload bytes have no alignment of their own; memcpy of one element compiles to a plain move.
[[gnu::always_inline]] inline void NarrowLoop(std::byte* bytes, const float* values, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    const uint16_t element = ToBfloat16(values[i]);
    std::memcpy(bytes + 2 * i, &element, 2);
  }
}

// Packing 32 bits into 16 takes the baseline's vector unit twice as long as AVX2's.
#ifdef __x86_64__
__attribute__((target("avx2"))) void NarrowAvx2(std::byte* bytes, const float* values,
                                                size_t count) {
  NarrowLoop(bytes, values, count);
}
#endif

void NarrowTo(std::byte* bytes, const float* values, size_t count) {
#ifdef __x86_64__
  static const bool has_avx2 = __builtin_cpu_supports("avx2");
  if (has_avx2) return NarrowAvx2(bytes, values, count);
#endif
  NarrowLoop(bytes, values, count);
}

void CheckSizes(Encoding encoding, size_t values, size_t bytes) {
  ATOLL_CHECK(!IsQuantized(encoding) && bytes == values * BytesPerElement(encoding), values,
              " elements in ", bytes, " bytes");
}

// Calls step(begin, end) over element ranges of about a block, hashing each block's bytes when
// `bytes` holds them: after the step (kAfter) or before it.
template <bool kHashAfter, typename Step>
uint64_t ByBlocks(std::span<const std::byte> bytes, Step step) {
  XXH3_state_t state;
  XXH3_64bits_reset(&state);
  for (size_t begin = 0; begin < bytes.size(); begin += kBlockBytes) {
    const size_t end = std::min(bytes.size(), begin + kBlockBytes);
    if constexpr (kHashAfter) step(begin, end);
    XXH3_64bits_update(&state, bytes.data() + begin, end - begin);
    if constexpr (!kHashAfter) step(begin, end);
  }
  return XXH3_64bits_digest(&state);
}

}  // namespace

void EncodeTensor(Encoding encoding, std::span<const float> values, std::span<std::byte> bytes) {
  CheckSizes(encoding, values.size(), bytes.size());
  if (values.empty()) return;
  if (encoding == Encoding::kFloat32) {
    std::memcpy(bytes.data(), values.data(), bytes.size());
  } else {
    NarrowTo(bytes.data(), values.data(), values.size());
  }
}

uint64_t EncodeAndHash(Encoding encoding, std::span<const float> values,
                       std::span<std::byte> bytes) {
  CheckSizes(encoding, values.size(), bytes.size());
  const size_t unit = BytesPerElement(encoding);
  return ByBlocks<true>(bytes, [&](size_t begin, size_t end) {
    EncodeTensor(encoding, values.subspan(begin / unit, (end - begin) / unit),
                 bytes.subspan(begin, end - begin));
  });
}

uint64_t CopyAndHash(std::span<const std::byte> from, std::span<std::byte> to) {
  ATOLL_CHECK(from.size() == to.size(), from.size(), " bytes into ", to.size());
  return ByBlocks<false>(from, [&](size_t begin, size_t end) {
    std::memcpy(to.data() + begin, from.data() + begin, end - begin);
  });
}

uint64_t HashWhile(std::span<const std::byte> bytes, absl::FunctionRef<void(size_t, size_t)> use) {
  return ByBlocks<false>(bytes, use);
}

uint64_t Hash(std::span<const std::byte> bytes) { return XXH3_64bits(bytes.data(), bytes.size()); }

}  // namespace atl
