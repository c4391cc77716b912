// The backends that the operations' tests and benchmark run on. Linking a file that registers one
// is all it takes to have it tested.

#ifndef ATOLL_KERNELS_TESTING_BACKENDS_H_
#define ATOLL_KERNELS_TESTING_BACKENDS_H_

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "kernels/backend.h"

namespace atl::testing {

struct BackendUnderTest {
  std::string name;
  DType compute = DType::kFloat32;
  // An error says why this machine cannot run it: its tests are then skipped, by name.
  std::function<absl::StatusOr<std::unique_ptr<Backend>>()> make;
};

// In the order of registration.
std::vector<BackendUnderTest>& BackendsUnderTest();

// A static object of this type registers a backend; if $ATOLL_ONLY_BACKENDS is set, only one whose
// name begins with it (for tools that slow everything down).
struct RegisterBackend {
  explicit RegisterBackend(BackendUnderTest backend);
};

}  // namespace atl::testing

#endif  // ATOLL_KERNELS_TESTING_BACKENDS_H_
