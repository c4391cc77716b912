// The devices that a worker's flags request, and the backends on them.

#ifndef ATOLL_WORKER_BACKENDS_H_
#define ATOLL_WORKER_BACKENDS_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "common/protocol/control.h"
#include "kernels/backend.h"
#include "kernels/cuda/cuda.h"
#include "worker/pipeline/engine.h"

namespace atl::worker {

struct DeviceFlags {
  std::string backend = "cpu";  // "cpu" or "cuda"
  // Set with cuda: indices and beginnings of UUIDs, separated by commas, or "all"; "": device 0.
  std::string device;
  std::string compute;       // "fp32" or "bf16"; "": bf16 where all devices are made for it
  int devices = 1;           // of cpu and reference
  int threads = 0;           // of all together; 0: one each
  int64_t memory_bytes = 0;  // of all together, for the model; 0: what each device has
  bool cuda_graphs = false;  // see CudaOptions::graphs
  // With cuda: true if NCCL joins devices in islands of several workers, too; several devices of
  // this worker are joined in any case.
  bool joins_others = false;
};

// One device, by its index in the worker.
struct WorkerDevice {
  std::string backend;
  DeviceInfo info;
  int64_t bound_bytes = 0;  // of its backends' memory; 0: what is free on it
  bool cuda_graphs = false;
};

// Selects the devices in the order in which the flags name them. All compute in one type.
// INVALID_ARGUMENT, NOT_FOUND or FAILED_PRECONDITION names the flag, the device and what to do.
// `cuda_devices`: what there is. Call it before anything else in the process that uses CUDA, and
// before there are threads: where GPUs work together it makes the driver load all kernels at its
// start, by the environment.
absl::StatusOr<std::vector<WorkerDevice>> FindWorkerDevices(
    const DeviceFlags& flags,
    const std::function<absl::StatusOr<std::vector<CudaDevice>>()>& cuda_devices = CudaDevices);

// The host's memory for a model, and whether the devices' memory is part of it: then it is what
// they have together, otherwise (GPUs) what this process may take of the
// machine (common/machine).
struct HostMemory {
  int64_t bytes = 0;
  bool has_devices = true;
};
HostMemory GetHostMemory(const std::vector<WorkerDevice>& devices);
// Returns the bytes of messages of pipelines that may wait to be received, whole workers together:
// a quarter of the host's memory, besides what is above. From 256 MiB to 4 GiB.
int64_t InboxBytes(const HostMemory& host);
// Returns the bytes of all-reduces' numbers from one other worker that may wait for the other
// members' numbers: a quarter as well, and more than the gradients of what this worker trains. From
// 256 MiB to 16 GiB.
int64_t GetCollectiveWindowBytes(const HostMemory& host);

// The type that they compute in.
DType GetComputeType(const std::vector<WorkerDevice>& devices);

// FAILED_PRECONDITION and RESOURCE_EXHAUSTED name the device.
absl::StatusOr<std::unique_ptr<Backend>> NewWorkerBackend(const WorkerDevice& device);
// Makes devices for the engine, with all their backends; see LocalDevice.
absl::StatusOr<std::vector<LocalDevice>> NewLocalDevices(const std::vector<WorkerDevice>& devices);

}  // namespace atl::worker

#endif  // ATOLL_WORKER_BACKENDS_H_
