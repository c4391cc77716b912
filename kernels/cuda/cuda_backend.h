// What NCCL needs to know of the CUDA backend. Not for use outside kernels/cuda.

#ifndef ATOLL_KERNELS_CUDA_CUDA_BACKEND_H_
#define ATOLL_KERNELS_CUDA_CUDA_BACKEND_H_

#include <memory>

#include "kernels/cuda/async_failure.h"
#include "kernels/cuda/ops.h"

namespace atl::cuda {

class DeviceBackend : public Ops {
 public:
  virtual int device_index() const = 0;
  // The runtime's stream behind one of this backend's.
  virtual CUstream_st* RawStream(Stream& stream) const = 0;
  // Synchronize will report this source's failure.
  virtual void ReportFailuresOf(std::shared_ptr<AsyncFailure> source) = 0;
};

}  // namespace atl::cuda

#endif  // ATOLL_KERNELS_CUDA_CUDA_BACKEND_H_
