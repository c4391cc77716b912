// The CUDA backend: cuBLASLt, cuDNN and our own kernels on one NVIDIA GPU. A build without
// --config=cuda has these functions too; they say that it has no CUDA.

#ifndef ATOLL_KERNELS_CUDA_CUDA_H_
#define ATOLL_KERNELS_CUDA_CUDA_H_

#include <memory>
#include <string>
#include <vector>

#include "kernels/backend.h"

namespace atl {

struct CudaDevice {
  int index = 0;
  std::string uuid;  // "GPU-0a1b2c3d-...", as nvidia-smi prints it
  std::string name;
  int64_t memory_bytes = 0;
  int major = 0, minor = 0;  // compute capability
};

struct CudaOptions {
  std::string device;        // "" or an index: that device; otherwise the beginning of a UUID
  int64_t memory_bytes = 0;  // bound of all device memory of the backend; 0: what is free now
  // Repeat records CUDA graphs. It saves the host's time per operation, which counts where
  // operations are short: see "CUDA graphs" in README.md.
  bool graphs = false;
};

// The devices that this process may use, by index. FAILED_PRECONDITION says what is missing: a GPU,
// a driver, a newer driver.
absl::StatusOr<std::vector<CudaDevice>> CudaDevices();

// The device that `wanted` names: see CudaOptions. NOT_FOUND lists what there is.
absl::StatusOr<CudaDevice> FindCudaDevice(const std::vector<CudaDevice>& devices,
                                          const std::string& wanted);

// kBfloat16 is supported from compute capability 8.0 on. Memory comes from a pool that the driver
// keeps for the backend's life; freeing a buffer waits for the device. Host memory is pinned and
// kept for the next AllocateHost.
absl::StatusOr<std::unique_ptr<Backend>> NewCudaBackend(const CudaOptions& options);

}  // namespace atl

#endif  // ATOLL_KERNELS_CUDA_CUDA_H_
