#include "kernels/cuda/dnn_rules.h"

#include <limits>

#include "absl/strings/str_cat.h"

namespace atl {

std::string DnnVersionText(int64_t version) {
  return absl::StrCat(version / 10000, ".", version % 10000 / 100, ".", version % 100);
}

const char* WhyNotByDnn(int64_t version, bool backward, int64_t seq_len) {
  if (version < 90000) return "before cuDNN 9";
  if (version == 91000 || version == 91001) return "cuDNN 9.10.0 and 9.10.1 compute it wrongly";
  // The frontend adds a padding mask there. Our own kernel is the simpler way out.
  if (backward && seq_len % 128 != 0 && version <= 91500) {
    return "until cuDNN 9.15.0 only for sequences of a multiple of 128";
  }
  return nullptr;
}

float DnnMinusInfinity(int64_t version) {
  return version < 91000 ? std::numeric_limits<float>::lowest()
                         : -std::numeric_limits<float>::infinity();
}

}  // namespace atl
