#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "kernels/cuda/cuda.h"

namespace atl {
namespace {

constexpr size_t kIndexDigits = 3;  // more of them begin a UUID

bool IsIndex(const std::string& wanted) {
  return wanted.size() <= kIndexDigits &&
         wanted.find_first_not_of("0123456789") == std::string::npos;
}

}  // namespace

absl::StatusOr<CudaDevice> FindCudaDevice(const std::vector<CudaDevice>& devices,
                                          const std::string& wanted) {
  std::string there;
  for (const CudaDevice& device : devices) {
    absl::StrAppend(&there, there.empty() ? "" : ", ", device.index, " = ", device.uuid, " (",
                    device.name, ")");
  }
  if (IsIndex(wanted)) {
    int index = 0;  // of ""
    (void)absl::SimpleAtoi(wanted, &index);
    for (const CudaDevice& device : devices) {
      if (device.index == index) return device;
    }
    return absl::NotFoundError(absl::StrCat("no CUDA device ", index, "; there are: ", there));
  }
  const CudaDevice* found = nullptr;
  for (const CudaDevice& device : devices) {
    const bool matches = absl::StartsWith(device.uuid, wanted) ||
                         absl::StartsWith(device.uuid, absl::StrCat("GPU-", wanted)) ||
                         absl::StartsWith(device.uuid, absl::StrCat("MIG-", wanted));
    if (!matches) continue;
    if (found != nullptr) {
      return absl::InvalidArgumentError(
          absl::StrCat("\"", wanted, "\" begins two CUDA devices' UUIDs; there are: ", there));
    }
    found = &device;
  }
  if (found != nullptr) return *found;
  return absl::NotFoundError(absl::StrCat("no CUDA device has a UUID that begins with \"", wanted,
                                          "\"; there are: ", there));
}

}  // namespace atl
