// Lists the devices of this machine, or names what is missing.

#include <cuda_runtime.h>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "kernels/cuda/cuda.h"

namespace atl {
namespace {

absl::Status StatusFromError(cudaError_t error, absl::string_view what) {
  return absl::InternalError(
      absl::StrCat(what, ": ", cudaGetErrorName(error), ": ", cudaGetErrorString(error)));
}

// Formats the UUID as nvidia-smi prints it. A slice of a GPU (MIG) has a UUID of its own, and shows
// by its name alone.
std::string UuidText(const cudaDeviceProp& device) {
  const cudaUUID_t& uuid = device.uuid;
  std::string text = absl::StrContains(device.name, " MIG ") ? "MIG-" : "GPU-";
  for (int i = 0; i < 16; ++i) {
    if (i == 4 || i == 6 || i == 8 || i == 10) text += '-';
    absl::StrAppendFormat(&text, "%02x", static_cast<unsigned char>(uuid.bytes[i]));
  }
  return text;
}

std::string VersionText(int version) {
  return absl::StrCat(version / 1000, ".", version % 1000 / 10);
}

}  // namespace

absl::StatusOr<std::vector<CudaDevice>> CudaDevices() {
  int count = 0, driver = 0, runtime = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  cudaGetLastError();
  cudaDriverGetVersion(&driver);
  cudaRuntimeGetVersion(&runtime);
  if (error == cudaErrorInsufficientDriver && driver > 0) {
    return absl::FailedPreconditionError(
        absl::StrCat("the NVIDIA driver supports CUDA ", VersionText(driver),
                     "; this build needs CUDA ", VersionText(runtime), ": install a newer driver"));
  }
  if (error == cudaErrorInsufficientDriver) {
    return absl::FailedPreconditionError("no NVIDIA driver on this machine: install one");
  }
  if (error == cudaErrorNoDevice || (error == cudaSuccess && count == 0)) {
    return absl::FailedPreconditionError(
        "no NVIDIA GPU that this process may use (see nvidia-smi and CUDA_VISIBLE_DEVICES)");
  }
  if (error != cudaSuccess) return StatusFromError(error, "cudaGetDeviceCount");
  std::vector<CudaDevice> devices;
  for (int i = 0; i < count; ++i) {
    cudaDeviceProp properties;
    const cudaError_t status = cudaGetDeviceProperties(&properties, i);
    cudaGetLastError();
    if (status != cudaSuccess) return StatusFromError(status, "cudaGetDeviceProperties");
    devices.push_back({i, UuidText(properties), properties.name,
                       static_cast<int64_t>(properties.totalGlobalMem), properties.major,
                       properties.minor});
  }
  return devices;
}

}  // namespace atl
