// Limits of cuDNN's versions: the same limits as NVIDIA's own frontend keeps to (its nodes for
// scaled dot-product attention). No device and no cuDNN is needed here.

#ifndef ATOLL_KERNELS_CUDA_DNN_RULES_H_
#define ATOLL_KERNELS_CUDA_DNN_RULES_H_

#include <cstdint>
#include <string>

namespace atl {

// `version` is cudnnGetVersion's: 91002 is 9.10.2.
std::string DnnVersionText(int64_t version);

// Returns why a version is not to be trusted with bf16 attention over sequences of this length;
// null if it may be.
const char* WhyNotByDnn(int64_t version, bool backward, int64_t seq_len);

// Returns the number that stands for minus infinity in the scores that a mask hides.
float DnnMinusInfinity(int64_t version);

}  // namespace atl

#endif  // ATOLL_KERNELS_CUDA_DNN_RULES_H_
