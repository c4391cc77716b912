// The class behind NewReferenceBackend, and how its loops reach elements.

#ifndef ATOLL_KERNELS_TESTING_REFERENCE_REFERENCE_BACKEND_H_
#define ATOLL_KERNELS_TESTING_REFERENCE_REFERENCE_BACKEND_H_

#include <string>

#include "kernels/element.h"
#include "kernels/host_backend.h"

namespace atl {

// Activations and their derivatives, in double.
double Activate(Activation kind, double x);
double ActivateDerivative(Activation kind, double x);

class ReferenceBackend final : public HostBackend {
 public:
  ReferenceBackend() : HostBackend("the reference", 0) {}

  std::string Name() const override { return "reference"; }
  // Sums stay in double: what bf16 costs here is the rounding of what is stored.
  bool Supports(DType compute) const override { return compute != DType::kInt32; }

  using HostBackend::Run;
  using HostBackend::WorkspaceBytes;
#define ATOLL_OPERATION(Op) void Run(Stream&, const Op& op) override;
#define ATOLL_OPERATION_WITH_SCRATCH(Op)               \
  void Run(Stream&, const Op& op, Workspace) override; \
  int64_t WorkspaceBytes(const Op&) const override { return 0; }
#define ATOLL_OPERATION_OF_HOSTS(Op)
  ATOLL_OPERATIONS(ATOLL_OPERATION, ATOLL_OPERATION_WITH_SCRATCH, ATOLL_OPERATION_WITH_SCRATCH,
                   ATOLL_OPERATION_OF_HOSTS)
#undef ATOLL_OPERATION
#undef ATOLL_OPERATION_WITH_SCRATCH
#undef ATOLL_OPERATION_OF_HOSTS
};

}  // namespace atl

#endif  // ATOLL_KERNELS_TESTING_REFERENCE_REFERENCE_BACKEND_H_
