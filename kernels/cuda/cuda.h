// The CUDA backend: cuBLASLt, cuDNN and our own kernels on one NVIDIA GPU. A build without
// --config=cuda has these functions too; they say that it has no CUDA.

#ifndef ATOLL_KERNELS_CUDA_CUDA_H_
#define ATOLL_KERNELS_CUDA_CUDA_H_

#include <memory>
#include <string>
#include <vector>

#include "kernels/backend.h"
#include "kernels/cuda/declined.h"

namespace atl {

struct CudaDevice {
  int index = 0;
  std::string uuid;  // "GPU-0a1b2c3d-...", or of a slice "MIG-...", as nvidia-smi prints it
  std::string name;
  int64_t memory_bytes = 0;
  int major = 0, minor = 0;  // compute capability
};

struct CudaOptions {
  // "" or up to three digits: the device of this index; otherwise the beginning of a UUID, with or
  // without "GPU-" or "MIG-".
  std::string device;
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
// keeps for the backend's lifetime; a buffer that is freed is used again once all streams of these
// backends have passed what they were given before. Host memory is pinned and kept for the next
// AllocateHost.
absl::StatusOr<std::unique_ptr<Backend>> NewCudaBackend(const CudaOptions& options);

// Backends for several threads of one device: they share its bound, and each waits for all their
// streams before it uses a freed buffer again.
absl::StatusOr<std::vector<std::unique_ptr<Backend>>> NewCudaBackends(const CudaOptions& options,
                                                                      int count);

// Lists the work that NVIDIA's libraries declined so far. REQUIRES: a CUDA backend.
std::vector<DeclinedWork> DeclinedBy(const Backend& backend);

}  // namespace atl

#endif  // ATOLL_KERNELS_CUDA_CUDA_H_
