// The meaning of a quantised encoding's bytes: one codec each, found by its Encoding.
//
// A codec's functions take elements from the begin of a block (EncodingInfo::block) on: any number,
// the last block may be short. They keep to one thread, allocate nothing, and make the same bits on
// every instruction set, however the blocks are distributed (but for denormal numbers, which the
// thread pool's blocks flush to zero). A new codec is a row of kEncodings (common/encoding.h) for
// its sizes, a file here and a row of the table in codecs.cc.

#ifndef ATOLL_KERNELS_CODECS_CODEC_H_
#define ATOLL_KERNELS_CODECS_CODEC_H_

#include <cstddef>
#include <cstdint>

#include "common/encoding.h"
#include "common/status.h"

namespace atl {

struct Codec {
  // Makes `out` of delta + residual and leaves in `residual` what got lost; null: nothing is added
  // or kept. A number that is not finite makes its whole block arrive as NaN, its residuals 0.
  using Encode = void (*)(const float* delta, float* residual, std::byte* out, int64_t elements);
  // Decodes any bytes; reads and writes nothing else.
  using Decode = void (*)(const std::byte* bytes, float* out, int64_t elements);

  Encoding encoding;
  Encode encode;
  Decode decode;
  // InvalidArgument: bytes that no encoder makes and that decode to other than finite numbers or
  // whole blocks of NaN, or in more than one way.
  absl::Status (*check)(const std::byte* bytes, int64_t elements);
};

// REQUIRES: a quantised encoding.
const Codec& GetCodec(Encoding encoding);

extern const Codec kInt8Codec, kInt4Codec;  // integers.cc
extern const Codec kE3m0Codec;              // e3m0.cc
extern const Codec kTopKCodec;              // topk.cc
// By the encoding without moments; these stay as they are in the bytes: moments.cc.
extern const Codec kCodecsWithMoments[kEncodingCount];

}  // namespace atl

#endif  // ATOLL_KERNELS_CODECS_CODEC_H_
