// Operations that cuBLASLt and cuDNN declined, so that our own kernels did them: right, but slower,
// which would go unnoticed.

#ifndef ATOLL_KERNELS_CUDA_DECLINED_H_
#define ATOLL_KERNELS_CUDA_DECLINED_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace atl {

struct DeclinedWork {
  std::string what;  // "cuBLASLt product + bias", "cuDNN attention backward"
  int64_t count = 0;
  std::string reason;  // of the first time
};

// Used by its backend's thread.
class Declined {
 public:
  // Counts; the first time of each `what` is logged.
  void Add(absl::string_view what, absl::string_view reason);

  const std::vector<DeclinedWork>& work() const { return work_; }  // in order of the first times

 private:
  std::vector<DeclinedWork> work_;
};

}  // namespace atl

#endif  // ATOLL_KERNELS_CUDA_DECLINED_H_
