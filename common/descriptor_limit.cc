#include "common/descriptor_limit.h"

#include <sys/resource.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "common/logging.h"

namespace atl {
namespace {

constexpr rlim_t kEnough = 1 << 16;  // more only makes what counts descriptors slow

}  // namespace

void RaiseDescriptorLimit() {
  rlimit limit;
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= kEnough) return;
  limit.rlim_cur = std::min(kEnough, limit.rlim_max);
  if (setrlimit(RLIMIT_NOFILE, &limit) != 0) {
    LogWarning("main", "the limit on open files stays as it is: ", std::strerror(errno));
  }
}

}  // namespace atl
