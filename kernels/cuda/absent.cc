// A build without CUDA.

#include "kernels/cuda/cuda.h"
#include "kernels/cuda/nccl.h"

namespace atl {
namespace {

absl::Status NoCuda() {
  return absl::FailedPreconditionError(
      "this build has no CUDA backend: build with --config=cuda, or choose another backend");
}

}  // namespace

absl::StatusOr<std::vector<CudaDevice>> CudaDevices() { return NoCuda(); }

absl::StatusOr<std::unique_ptr<Backend>> NewCudaBackend(const CudaOptions&) { return NoCuda(); }

absl::StatusOr<std::vector<std::unique_ptr<Backend>>> NewCudaBackends(const CudaOptions&, int) {
  return NoCuda();
}

std::vector<DeclinedWork> DeclinedBy(const Backend&) { return {}; }

std::string NcclVersion() { return ""; }

absl::StatusOr<std::string> NewNcclId() { return NoCuda(); }

absl::StatusOr<std::unique_ptr<Communicator>> JoinNccl(Backend&, const NcclGroup&) {
  return NoCuda();
}

}  // namespace atl
