#include "kernels/cuda/declined.h"

#include "common/logging.h"

namespace atl {

void Declined::Add(absl::string_view what, absl::string_view reason) {
  for (DeclinedWork& known : work_) {
    if (known.what != what) continue;
    ++known.count;
    return;
  }
  work_.push_back({std::string(what), 1, std::string(reason)});
  LogInfo("cuda", what, " by our own kernels: ", reason);
}

}  // namespace atl
