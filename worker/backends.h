// The backend that a worker's flags ask for.

#ifndef ATOLL_WORKER_BACKENDS_H_
#define ATOLL_WORKER_BACKENDS_H_

#include <cstdint>
#include <memory>
#include <string>

#include "kernels/backend.h"

namespace atl::worker {

struct BackendOptions {
  std::string backend = "cpu";  // "cpu", "cuda" or "reference"
  std::string device;           // of cuda: an index, or the beginning of a UUID; "": device 0
  std::string compute;          // "fp32" or "bf16"; "": bf16 where the device is made for it
  int threads = 1;              // of cpu
  int64_t memory_bytes = 0;     // bound of the model's memory; 0: what the device or machine has
};

struct WorkerBackend {
  std::unique_ptr<Backend> backend;
  DType compute = DType::kFloat32;
  int64_t memory_bytes = 0;
};

// INVALID_ARGUMENT, NOT_FOUND or FAILED_PRECONDITION names the flag and what to do.
absl::StatusOr<WorkerBackend> NewWorkerBackend(const BackendOptions& options);

}  // namespace atl::worker

#endif  // ATOLL_WORKER_BACKENDS_H_
