#include "common/check.h"
#include "kernels/codecs/codec.h"

namespace atl {

const Codec& GetCodec(Encoding encoding) {
  if (HasMoments(encoding)) {
    return kCodecsWithMoments[static_cast<int>(WithoutMoments(encoding))];
  }
  static const Codec* const kCodecs[] = {&kInt8Codec, &kInt4Codec, &kE3m0Codec, &kTopKCodec};
  for (const Codec* codec : kCodecs) {
    if (codec->encoding == encoding) return *codec;
  }
  ATOLL_CHECK(false, "encoding ", static_cast<int>(encoding), " is not quantised");
  __builtin_unreachable();
}

}  // namespace atl
