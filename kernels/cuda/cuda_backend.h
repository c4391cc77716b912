// Access to the CUDA backend for NCCL. Not for use outside kernels/cuda.

#ifndef ATOLL_KERNELS_CUDA_CUDA_BACKEND_H_
#define ATOLL_KERNELS_CUDA_CUDA_BACKEND_H_

#include "kernels/async_failure.h"
#include "kernels/cuda/ops.h"

namespace atl::cuda {

class DeviceBackend : public Ops, public ReportsFailures {
 public:
  virtual int device_index() const = 0;
  // The runtime's stream behind one of this backend's.
  virtual CUstream_st* RawStream(Stream& stream) const = 0;
};

}  // namespace atl::cuda

#endif  // ATOLL_KERNELS_CUDA_CUDA_BACKEND_H_
