#include "tests/fuzz/decoder.h"

namespace atl::fuzz {

std::vector<Decoder>& Decoders() {
  static std::vector<Decoder> decoders;
  return decoders;
}

}  // namespace atl::fuzz
