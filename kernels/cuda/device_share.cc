#include "kernels/cuda/device_share.h"

#include <algorithm>

namespace atl::cuda {
namespace {

// An error is reported by its value, or not at all: left with the runtime, it would pass for the
// next launch's.
cudaError_t Taken(cudaError_t error) {
  if (error != cudaSuccess) cudaGetLastError();
  return error;
}

}  // namespace

DeviceShare::~DeviceShare() {
  for (cudaEvent_t event : ended_) cudaEventDestroy(event);
}

cudaError_t DeviceShare::AddStream(cudaStream_t stream) {
  Known known;
  const cudaError_t error = Taken(cudaEventCreateWithFlags(&known.last, cudaEventDisableTiming));
  if (error != cudaSuccess) return error;
  std::lock_guard lock(mutex_);
  streams_[stream] = known;
  return cudaSuccess;
}

void DeviceShare::RemoveStream(cudaStream_t stream) {
  std::lock_guard lock(mutex_);
  const auto known = streams_.find(stream);
  if (known == streams_.end()) return;
  Taken(cudaEventRecord(known->second.last, stream));
  ended_.push_back(known->second.last);
  streams_.erase(known);
}

void DeviceShare::BeginCapture(cudaStream_t stream) {
  std::lock_guard lock(mutex_);
  Known& known = streams_[stream];
  Taken(cudaEventRecord(known.last, stream));
  known.capturing = true;
}

void DeviceShare::EndCapture(cudaStream_t stream) {
  std::lock_guard lock(mutex_);
  streams_[stream].capturing = false;
}

cudaError_t DeviceShare::Follow(cudaStream_t waiter) {
  std::lock_guard lock(mutex_);
  cudaError_t first = cudaSuccess;
  const auto keep = [&first](cudaError_t error) {
    if (Taken(error) != cudaSuccess && first == cudaSuccess) first = error;
  };
  for (auto& [stream, known] : streams_) {
    if (!known.capturing) keep(cudaEventRecord(known.last, stream));
    keep(cudaStreamWaitEvent(waiter, known.last, 0));
  }
  std::erase_if(ended_, [&](cudaEvent_t event) {
    if (Taken(cudaEventQuery(event)) == cudaSuccess) {
      cudaEventDestroy(event);
      return true;
    }
    keep(cudaStreamWaitEvent(waiter, event, 0));
    return false;
  });
  return first;
}

void DeviceShare::AddPool(cudaMemPool_t pool) {
  std::lock_guard lock(mutex_);
  pools_.push_back(pool);
}

void DeviceShare::RemovePool(cudaMemPool_t pool) {
  std::lock_guard lock(mutex_);
  pools_.erase(std::remove(pools_.begin(), pools_.end(), pool), pools_.end());
}

void DeviceShare::TrimPools() {
  std::lock_guard lock(mutex_);
  for (cudaMemPool_t pool : pools_) Taken(cudaMemPoolTrimTo(pool, 0));
}

}  // namespace atl::cuda
