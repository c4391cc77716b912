// State that the backends of one device share. Not for use outside kernels/cuda.

#ifndef ATOLL_KERNELS_CUDA_DEVICE_SHARE_H_
#define ATOLL_KERNELS_CUDA_DEVICE_SHARE_H_

#include <cuda_runtime.h>

#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "kernels/memory_ledger.h"

namespace atl::cuda {

// A bound of the device's memory; each other's streams, on any of which a buffer that is being
// freed may still be in use; each other's pools, whose idle memory one of them may need.
// Thread-safe. REQUIRES: the calling thread's device is this one.
class DeviceShare {
 public:
  explicit DeviceShare(int64_t limit_bytes) : bound_(std::make_shared<MemoryBound>(limit_bytes)) {}
  ~DeviceShare();
  DeviceShare(const DeviceShare&) = delete;
  DeviceShare& operator=(const DeviceShare&) = delete;

  const std::shared_ptr<MemoryBound>& bound() const { return bound_; }

  // A stream from its making to just before its end.
  cudaError_t AddStream(cudaStream_t stream);
  void RemoveStream(cudaStream_t stream);
  // Around a capture, in which no other thread may query the stream.
  void BeginCapture(cudaStream_t stream);
  void EndCapture(cudaStream_t stream);

  // Makes all that is enqueued on `waiter` from now on wait for the work of all streams so far (of
  // a stream that is being captured: for its work before that). Never blocks the host.
  cudaError_t Follow(cudaStream_t waiter);

  void AddPool(cudaMemPool_t pool);
  void RemovePool(cudaMemPool_t pool);
  // Gives back to the driver what the pools keep of buffers that were freed.
  void TrimPools();

 private:
  struct Known {
    cudaEvent_t last = nullptr;
    bool capturing = false;
  };

  const std::shared_ptr<MemoryBound> bound_;
  std::mutex mutex_;  // of everything below
  std::map<cudaStream_t, Known> streams_;
  std::vector<cudaEvent_t> ended_;  // the last work of destroyed streams
  std::vector<cudaMemPool_t> pools_;
};

}  // namespace atl::cuda

#endif  // ATOLL_KERNELS_CUDA_DEVICE_SHARE_H_
