// The sizes of a tensor's elements on the wire and on disk, little endian: the one table for all
// checks of a length. The meaning of the quantised ones' bytes is defined by their codecs
// (kernels/codecs/).

#ifndef ATOLL_COMMON_ENCODING_H_
#define ATOLL_COMMON_ENCODING_H_

#include <cstdint>

namespace atl {

// The numbers are those of messages and files.
enum class Encoding : uint8_t {
  kFloat32 = 0,
  kBfloat16 = 1,
  // For pseudo-gradients alone:
  kInt8 = 2,
  kInt4 = 3,
  kE3m0 = 4,  // sign and a power of two, in 4 bits
  kTopK = 5,  // the largest of a chunk, in 2 bits and an index each
  // One of the above plus this: behind each block of it the inner optimizer's moments
  // (kernels/codecs/moments.h).
  kWithMoments = 8,
  kMomentsAlone = 14,
};

// Elements that share a scale in int8, int4 and e3m0.
inline constexpr int64_t kQuantBlock = 256;
// Sizes of topk: elements of a chunk, of how many one is kept, and bits of an index.
inline constexpr int64_t kTopKChunk = 4096;
inline constexpr int64_t kTopKShare = 64;
inline constexpr int64_t kTopKIndexBits = 12;

inline constexpr int64_t TopKKept(int64_t elements) {
  return (elements + kTopKShare - 1) / kTopKShare;
}

struct EncodingInfo {
  const char* name;  // in job files
  bool quantized;    // some of a number is lost, and owed (error feedback)
  int64_t block;     // elements that are encoded together; the last block has what is left
  // Bytes of a block of 1 to `block` elements.
  int64_t (*block_bytes)(int64_t elements);
};

inline constexpr EncodingInfo kEncodings[] = {
    {"float32", false, 1, [](int64_t n) { return 4 * n; }},
    {"bfloat16", false, 1, [](int64_t n) { return 2 * n; }},
    {"int8", true, kQuantBlock, [](int64_t n) { return 4 + n; }},
    {"int4", true, kQuantBlock, [](int64_t n) { return 4 + (n + 1) / 2; }},
    {"e3m0", true, kQuantBlock, [](int64_t n) { return 4 + (n + 1) / 2; }},
    {"topk", true, kTopKChunk,
     [](int64_t n) {
       const int64_t kept = TopKKept(n);
       return 8 + (kept * kTopKIndexBits + 7) / 8 + (kept * 2 + 7) / 8;
     }},
    {"moments", false, 1, [](int64_t) { return int64_t{0}; }},
};
inline constexpr int kEncodingCount = sizeof(kEncodings) / sizeof(kEncodings[0]) - 1;

inline constexpr bool HasMoments(Encoding encoding) { return encoding >= Encoding::kWithMoments; }
inline constexpr Encoding WithMoments(Encoding encoding) {
  return static_cast<Encoding>(static_cast<int>(encoding) |
                               static_cast<int>(Encoding::kWithMoments));
}
inline constexpr Encoding WithoutMoments(Encoding encoding) {
  return static_cast<Encoding>(static_cast<int>(encoding) &
                               ~static_cast<int>(Encoding::kWithMoments));
}

// Returns whether this number, from the network or a disk, is one of a contribution's encodings.
inline constexpr bool IsEncoding(int64_t number) {
  const int64_t base = number >= static_cast<int64_t>(Encoding::kWithMoments)
                           ? number - static_cast<int64_t>(Encoding::kWithMoments)
                           : number;
  return base >= 0 && base < kEncodingCount;
}

// Returns, with moments, the row of the pseudo-gradient. REQUIRES: one of the table.
inline constexpr const EncodingInfo& GetEncodingInfo(Encoding encoding) {
  return kEncodings[static_cast<int>(WithoutMoments(encoding))];
}

// Returns whether a codec makes the bytes.
inline constexpr bool IsQuantized(Encoding encoding) {
  return HasMoments(encoding) || GetEncodingInfo(encoding).quantized;
}

// Returns the size of an element. REQUIRES: the encoding is not quantised.
inline constexpr int64_t BytesPerElement(Encoding encoding) {
  return GetEncodingInfo(encoding).block_bytes(1);
}

// Elements that are encoded together; the last block has what is left.
inline constexpr int64_t EncodedBlock(Encoding encoding) {
  const int64_t block = GetEncodingInfo(encoding).block;
  return HasMoments(encoding) && block < kQuantBlock ? kQuantBlock : block;
}

inline constexpr int64_t EncodedBytes(Encoding encoding, int64_t elements) {
  const EncodingInfo& info = GetEncodingInfo(encoding);
  const int64_t block = EncodedBlock(encoding);
  const auto block_bytes = [&](int64_t n) -> int64_t {
    if (n == 0) return 0;
    if (!HasMoments(encoding)) return info.block_bytes(n);
    return info.block_bytes(n) + EncodedBytes(Encoding::kInt8, n) +
           EncodedBytes(Encoding::kInt4, n);
  };
  return elements / block * block_bytes(block) + block_bytes(elements % block);
}

// A push of some of a shard's elements begins at a multiple of this, and ends at one or with the
// shard: its bytes are then those of the whole shard's push.
inline constexpr int64_t PartBlock(Encoding encoding) {
  return GetEncodingInfo(encoding).block > kQuantBlock ? GetEncodingInfo(encoding).block
                                                       : kQuantBlock;
}

}  // namespace atl

#endif  // ATOLL_COMMON_ENCODING_H_
