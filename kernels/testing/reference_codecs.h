// The meaning of what codecs make (kernels/codecs/), in plain loops of its own: they must have the
// same bits.

#ifndef ATOLL_KERNELS_TESTING_REFERENCE_CODECS_H_
#define ATOLL_KERNELS_TESTING_REFERENCE_CODECS_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include "common/encoding.h"

namespace atl {

// Encodes and decodes as a Codec does. REQUIRES: a quantised encoding, without moments.
void ReferenceEncode(Encoding encoding, const float* delta, float* residual, std::byte* out,
                     int64_t elements);
void ReferenceDecode(Encoding encoding, const std::byte* bytes, float* out, int64_t elements);

// The same as EncodeMoments and DecodeRatios.
void ReferenceEncodeMoments(Encoding encoding, std::span<const float> first,
                            std::span<const float> second, std::span<std::byte> out);
void ReferenceDecodeRatios(Encoding encoding, std::span<const std::byte> bytes,
                           std::span<float> ratios, std::span<float> second);

}  // namespace atl

#endif  // ATOLL_KERNELS_TESTING_REFERENCE_CODECS_H_
