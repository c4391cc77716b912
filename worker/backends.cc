#include "worker/backends.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <iterator>
#include <system_error>
#include <utility>

#include "absl/strings/str_split.h"
#include "common/logging.h"
#include "common/machine/limits.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cuda/nccl.h"

namespace atl::worker {
namespace {

constexpr int64_t kInboxBytesMin = int64_t{256} << 20;
constexpr int64_t kInboxBytesMax = int64_t{4} << 30;
constexpr int64_t kCollectiveWindowMax = int64_t{16} << 30;

constexpr char kHalf[] = "bf16";
constexpr char kFull[] = "fp32";

std::string DescribeGpu(const CudaDevice& device) {
  return absl::StrCat(device.uuid, " (", device.name, ")");
}

absl::StatusOr<std::vector<CudaDevice>> Choose(const std::vector<CudaDevice>& there,
                                               const std::string& wanted) {
  if (wanted == "all") return there;
  std::vector<CudaDevice> chosen;
  std::vector<std::string> words;
  for (const absl::string_view item : absl::StrSplit(wanted, ',')) {
    const std::string word(item);
    if (word.empty() && !wanted.empty()) {
      return absl::InvalidArgumentError("an empty name between commas; name each device once");
    }
    if (word == "all") return absl::InvalidArgumentError("\"all\" stands alone");
    ATOLL_ASSIGN_OR_RETURN(const CudaDevice device, FindCudaDevice(there, word));
    for (size_t i = 0; i < chosen.size(); ++i) {
      if (chosen[i].uuid != device.uuid) continue;
      return absl::InvalidArgumentError(absl::StrCat("\"", words[i], "\" and \"", word,
                                                     "\" are both ", DescribeGpu(device),
                                                     "; name each device once"));
    }
    chosen.push_back(device);
    words.push_back(word);
  }
  return chosen;
}

// A kernel of NCCL's holds its device until the peers' have come. The driver loads others at their
// first launch; for that it waits until the device is idle, and holds a lock that all calls need,
// those too which the peers wait for: so all are loaded at the start, at the price of some time and
// device memory. The operator's setting counts, as for all of the driver's variables. Other threads
// may read the environment while it changes.
void LoadKernelsAtStart() {
  constexpr char kVariable[] = "CUDA_MODULE_LOADING";
  if (std::getenv(kVariable) != nullptr) return;
  std::error_code error;
  const std::filesystem::directory_iterator threads("/proc/self/task", error);
  if (!error && std::distance(begin(threads), end(threads)) == 1) {
    setenv(kVariable, "EAGER", /*overwrite=*/0);
    return;
  }
  LogWarning("worker", kVariable, " is not set: GPUs that work together may wait for each other; ",
             "start the worker with ", kVariable, "=EAGER in its environment");
}

// Its share of --memory-bytes, or all that the device has.
absl::StatusOr<int64_t> SelectDeviceMemory(const DeviceFlags& flags, size_t devices, int64_t has,
                                           const std::string& name) {
  if (flags.memory_bytes == 0) return has;
  const int64_t share = flags.memory_bytes / static_cast<int64_t>(devices);
  if (share <= has) return share;
  return absl::InvalidArgumentError(absl::StrCat("--memory-bytes ", flags.memory_bytes, ": ", share,
                                                 " for each of ", devices, " devices, but ", name,
                                                 " has ", has));
}

absl::StatusOr<std::vector<WorkerDevice>> FindGpus(const DeviceFlags& flags,
                                                   const std::vector<CudaDevice>& there) {
  auto chosen = Choose(there, flags.device);
  if (!chosen.ok()) {
    return Annotate(chosen.status(), flags.device.empty()
                                         ? std::string("--backend cuda")
                                         : absl::StrCat("--device ", flags.device));
  }
  const auto halves = [](const CudaDevice& device) { return device.major >= 8; };
  std::string compute = flags.compute;
  if (compute.empty()) {
    compute = std::all_of(chosen->begin(), chosen->end(), halves) ? kHalf : kFull;
  }
  std::vector<WorkerDevice> devices;
  for (const CudaDevice& gpu : *chosen) {
    if (compute == kHalf && !halves(gpu)) {
      return absl::InvalidArgumentError(absl::StrCat("--compute bf16: ", DescribeGpu(gpu),
                                                     " has compute capability ", gpu.major, ".",
                                                     gpu.minor, "; bf16 needs 8.0"));
    }
    WorkerDevice& device = devices.emplace_back();
    device.backend = flags.backend;
    device.cuda_graphs = flags.cuda_graphs;
    ATOLL_ASSIGN_OR_RETURN(
        device.info.memory_bytes,
        SelectDeviceMemory(flags, chosen->size(), gpu.memory_bytes, DescribeGpu(gpu)));
    if (flags.memory_bytes > 0) device.bound_bytes = device.info.memory_bytes;
    device.info.kind = compute == kHalf ? absl::StrCat(gpu.name, " bf16") : gpu.name;
    device.info.uuid = gpu.uuid;
    device.info.compute = compute;
    device.info.nccl = NcclVersion();
    device.info.host_memory_bytes = ReadFreeMemory();
  }
  return devices;
}

// The machine, cut into equal devices.
absl::StatusOr<std::vector<WorkerDevice>> CutHost(const DeviceFlags& flags) {
  if (flags.compute == kHalf) {
    return absl::InvalidArgumentError("--compute bf16: cpu computes in fp32 only");
  }
  WorkerDevice device;
  device.backend = flags.backend;
  const int64_t memory = flags.memory_bytes > 0 ? flags.memory_bytes : ReadFreeMemory();
  device.info.memory_bytes = memory / flags.devices;
  device.info.compute = kFull;
  device.info.kind = "cpu";
  return std::vector<WorkerDevice>(static_cast<size_t>(flags.devices), device);
}

// Makes so many backends for one device, whose memory they share.
absl::StatusOr<std::vector<std::unique_ptr<Backend>>> NewGpuBackends(const WorkerDevice& device,
                                                                     int count) {
  auto made = NewCudaBackends({device.info.uuid, device.bound_bytes, device.cuda_graphs}, count);
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
  if (flags.backend != "cpu" && flags.backend != "cuda") {
    return absl::InvalidArgumentError(
        absl::StrCat("--backend ", flags.backend, ": must be cpu or cuda"));
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
    const bool several = flags.device == "all" || flags.device.find(',') != std::string::npos;
    if (several || flags.joins_others) LoadKernelsAtStart();
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

HostMemory GetHostMemory(const std::vector<WorkerDevice>& devices) {
  if (devices.at(0).backend == "cuda") return {ReadFreeMemory(), false};
  HostMemory host;
  for (const WorkerDevice& device : devices) host.bytes += device.info.memory_bytes;
  return host;
}

int64_t InboxBytes(const HostMemory& host) {
  return std::clamp(host.bytes / 4, kInboxBytesMin, kInboxBytesMax);
}

int64_t GetCollectiveWindowBytes(const HostMemory& host) {
  return std::clamp(host.bytes / 4, kInboxBytesMin, kCollectiveWindowMax);
}

DType GetComputeType(const std::vector<WorkerDevice>& devices) {
  return devices.at(0).info.compute == kHalf ? DType::kBfloat16 : DType::kFloat32;
}

absl::StatusOr<std::unique_ptr<Backend>> NewWorkerBackend(const WorkerDevice& device) {
  if (device.backend != "cuda") {
    return NewCpuBackend(device.info.threads, device.info.memory_bytes);
  }
  ATOLL_ASSIGN_OR_RETURN(auto backends, NewGpuBackends(device, 1));
  return std::move(backends.front());
}

absl::StatusOr<std::vector<LocalDevice>> NewLocalDevices(const std::vector<WorkerDevice>& devices) {
  std::vector<LocalDevice> all;
  for (const WorkerDevice& device : devices) {
    LocalDevice& made = all.emplace_back();
    made.index = static_cast<int>(all.size()) - 1;
    made.memory_bytes = device.info.memory_bytes;
    if (device.backend != "cuda") {
      made.compute = NewCpuBackend(device.info.threads, made.memory_bytes);
      made.communication = NewCpuBackend(1, made.memory_bytes);
      continue;
    }
    ATOLL_ASSIGN_OR_RETURN(auto backends, NewGpuBackends(device, 5));
    made.compute = std::move(backends[0]);
    made.communication = std::move(backends[1]);
    made.sending = std::move(backends[2]);
    made.receiving = std::move(backends[3]);
    made.staging = std::move(backends[4]);
  }
  return all;
}

}  // namespace atl::worker
