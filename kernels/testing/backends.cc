#include "kernels/testing/backends.h"

namespace atl::testing {

std::vector<BackendUnderTest>& BackendsUnderTest() {
  static std::vector<BackendUnderTest> backends;
  return backends;
}

}  // namespace atl::testing
