#include "worker/backends.h"

#include <unistd.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_split.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cuda/nccl.h"
#include "kernels/reference/reference.h"

namespace atl::worker {
namespace {

constexpr char kHalf[] = "bf16";
constexpr char kFull[] = "fp32";

int64_t MachineMemoryBytes() {
  return static_cast<int64_t>(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGESIZE);
}

  auto made = NewCudaBackend({device.info.uuid, device.bound_bytes, device.cuda_graphs});
  if (!made.ok()) return Annotate(made.status(), absl::StrCat("--device ", device.info.uuid));
  return made;
}

}  // namespace

absl::StatusOr<std::vector<WorkerDevice>> FindWorkerDevices(
    const DeviceFlags& flags,
    const std::function<absl::StatusOr<std::vector<CudaDevice>>()>& cuda_devices) {
  if (!flags.compute.empty() && flags.compute != kFull && flags.compute != kHalf) {
    return absl::InvalidArgumentError(
        absl::StrCat("--compute ", flags.compute, ": must be fp32 or bf16"));
  }
  if (flags.backend != "cpu" && flags.backend != "cuda" && flags.backend != "reference") {
    return absl::InvalidArgumentError(
        absl::StrCat("--backend ", flags.backend, ": must be cpu, cuda or reference"));
  }
  if (!flags.device.empty() && flags.backend != "cuda") {
    return absl::InvalidArgumentError(
        absl::StrCat("--device ", flags.device, ": only --backend cuda has devices to choose"));
  }
  std::vector<WorkerDevice> devices;
  if (flags.backend == "cuda") {
    if (flags.devices > 1) {
      return absl::InvalidArgumentError(absl::StrCat(
          "--devices ", flags.devices, ": GPUs are not cut; choose them with --device"));
    }
    const auto there = cuda_devices();
    if (!there.ok()) return Annotate(there.status(), "--backend cuda");
    ATOLL_ASSIGN_OR_RETURN(devices, FindGpus(flags, *there));
  } else {
    ATOLL_ASSIGN_OR_RETURN(devices, CutHost(flags));
  }
  for (WorkerDevice& device : devices) {
    device.info.threads = std::max(1, flags.threads / static_cast<int>(devices.size()));
  }
  return devices;
}

DType ComputeOf(const std::vector<WorkerDevice>& devices) {
  return devices.at(0).info.compute == kHalf ? DType::kBfloat16 : DType::kFloat32;
}

absl::StatusOr<std::unique_ptr<Backend>> NewWorkerBackend(const WorkerDevice& device) {
  return NewBackendOf(device, device.info.threads);
}

absl::StatusOr<std::vector<LocalDevice>> NewLocalDevices(const std::vector<WorkerDevice>& devices) {
  std::vector<LocalDevice> all;
  for (const WorkerDevice& device : devices) {
    LocalDevice& made = all.emplace_back();
    made.index = static_cast<int>(all.size()) - 1;
    made.memory_bytes = device.info.memory_bytes;
    ATOLL_ASSIGN_OR_RETURN(made.compute, NewBackendOf(device, device.info.threads));
    ATOLL_ASSIGN_OR_RETURN(made.communication, NewBackendOf(device, 1));
    if (made.compute->memory_on_host()) continue;
    ATOLL_ASSIGN_OR_RETURN(made.sending, NewBackendOf(device, 1));
    ATOLL_ASSIGN_OR_RETURN(made.receiving, NewBackendOf(device, 1));
  }
  return all;
}

}  // namespace atl::worker
