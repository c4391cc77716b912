// Registers the CUDA backend in both types. Where there is no GPU, or it has no bf16, the tests say
// so by name.

#include "kernels/cuda/cuda.h"
#include "kernels/testing/backends.h"

namespace atl::testing {
namespace {

absl::StatusOr<std::unique_ptr<Backend>> MakeHalf() {
  ATOLL_ASSIGN_OR_RETURN(std::unique_ptr<Backend> backend, NewCudaBackend({}));
  if (!backend->Supports(DType::kBfloat16)) {
    return absl::UnimplementedError(backend->Name() + " has no bf16");
  }
  return backend;
}

const RegisterBackend full({"cuda", DType::kFloat32, [] { return NewCudaBackend({}); }});
const RegisterBackend half({"cuda, bf16", DType::kBfloat16, MakeHalf});

}  // namespace
}  // namespace atl::testing
