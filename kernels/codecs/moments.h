// The inner optimizer's moments m and v as they travel: u = m / sqrt(v) in int8, and v as the power
// of two, at most 2^-15 below the block's largest, that is nearest on a logarithmic scale. So
// sqrt(v) is in half octaves and never 0 beside others, which linear codes of few bits make it:
// islands whose moments are averaged would divide by it. proto/frame.proto has the bytes; they lie
// behind each block of the pseudo-gradient (WithMoments), or alone.
//
// Elements without v, of an optimizer that keeps none of them (v = 0, m not), come back with m and
// some v. Of a block in which a number is not finite both come back as 0.

#ifndef ATOLL_KERNELS_CODECS_MOMENTS_H_
#define ATOLL_KERNELS_CODECS_MOMENTS_H_

#include <cstddef>
#include <span>

#include "common/encoding.h"
#include "common/status.h"

namespace atl {

// Writes the moments into `out`, and nothing of the pseudo-gradient. REQUIRES:
// HasMoments(encoding), equal sizes, out.size() == EncodedBytes(encoding, first.size()).
void EncodeMoments(Encoding encoding, std::span<const float> first, std::span<const float> second,
                   std::span<std::byte> out);
// Writes u and v as they are.
void EncodeRatios(Encoding encoding, std::span<const float> ratios, std::span<const float> second,
                  std::span<std::byte> out);
// Reads u and v of a block-aligned part. REQUIRES: as above.
void DecodeRatios(Encoding encoding, std::span<const std::byte> bytes, std::span<float> ratios,
                  std::span<float> second);
// m = u sqrt(v), in the place of u.
void FirstFromRatios(std::span<float> ratios, std::span<const float> second);

// InvalidArgument: bytes of moments that no encoder makes.
absl::Status CheckMoments(Encoding encoding, std::span<const std::byte> bytes, int64_t elements);

}  // namespace atl

#endif  // ATOLL_KERNELS_CODECS_MOMENTS_H_
