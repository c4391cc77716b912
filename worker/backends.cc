#include "worker/backends.h"

#include <unistd.h>

#include <utility>

#include "kernels/cpu/cpu.h"
#include "kernels/cuda/cuda.h"
#include "kernels/reference/reference.h"

namespace atl::worker {
namespace {

int64_t MachineMemoryBytes() {
  return static_cast<int64_t>(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGESIZE);
}

absl::Status MakeCuda(const BackendOptions& options, WorkerBackend* made) {
  ATOLL_ASSIGN_OR_RETURN(const std::vector<CudaDevice> devices, CudaDevices());
  ATOLL_ASSIGN_OR_RETURN(const CudaDevice device, FindCudaDevice(devices, options.device));
  ATOLL_ASSIGN_OR_RETURN(made->backend, NewCudaBackend({options.device, options.memory_bytes}));
  if (made->memory_bytes == 0) made->memory_bytes = device.memory_bytes;
  if (made->backend->Supports(DType::kBfloat16)) made->compute = DType::kBfloat16;
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<WorkerBackend> NewWorkerBackend(const BackendOptions& options) {
  if (!options.compute.empty() && options.compute != "fp32" && options.compute != "bf16") {
    return absl::InvalidArgumentError(
        absl::StrCat("--compute ", options.compute, ": must be fp32 or bf16"));
  }
  if (!options.device.empty() && options.backend != "cuda") {
    return absl::InvalidArgumentError(
        absl::StrCat("--device ", options.device, ": only --backend cuda has devices to choose"));
  }
  WorkerBackend made;
  made.memory_bytes = options.memory_bytes;
  if (options.backend == "cpu") {
    made.backend = NewCpuBackend(options.threads, options.memory_bytes);
  } else if (options.backend == "reference") {
    made.backend = NewReferenceBackend();
  } else if (options.backend == "cuda") {
    ATOLL_RETURN_IF_ERROR(Annotate(MakeCuda(options, &made), "--backend cuda"));
  } else {
    return absl::InvalidArgumentError(
        absl::StrCat("--backend ", options.backend, ": must be cpu, cuda or reference"));
  }
  if (made.memory_bytes == 0) made.memory_bytes = MachineMemoryBytes();
  if (!options.compute.empty()) {
    made.compute = options.compute == "bf16" ? DType::kBfloat16 : DType::kFloat32;
  }
  if (!made.backend->Supports(made.compute)) {
    return absl::InvalidArgumentError(absl::StrCat("--compute ", options.compute, ": ",
                                                   made.backend->Name(), " computes in fp32 only"));
  }
  return made;
}

}  // namespace atl::worker
