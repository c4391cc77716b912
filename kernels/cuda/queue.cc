#include "kernels/cuda/queue.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace atl::ATOLL_DEVICE {

absl::Status FirstError::Take() { return std::exchange(status_, absl::OkStatus()); }

void FirstError::Keep(const absl::Status& status) {
  if (status_.ok()) status_ = status;
}

void FirstError::KeepError(int code, const char* what) {
  if (status_.ok()) status_ = Describe(code, what);
}

absl::Status FirstError::Describe(int code, const char* what) const {
  return absl::InternalError(absl::StrCat(what, ": error ", code));
}

}  // namespace atl::ATOLL_DEVICE
