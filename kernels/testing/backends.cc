#include "kernels/testing/backends.h"

#include <cstdlib>
#include <utility>

namespace atl::testing {

std::vector<BackendUnderTest>& BackendsUnderTest() {
  static std::vector<BackendUnderTest> backends;
  return backends;
}

RegisterBackend::RegisterBackend(BackendUnderTest backend) {
  const char* only = std::getenv("ATOLL_ONLY_BACKENDS");
  if (only != nullptr && backend.name.rfind(only, 0) != 0) return;
  BackendsUnderTest().push_back(std::move(backend));
}

}  // namespace atl::testing
