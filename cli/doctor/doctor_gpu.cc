#include "cli/doctor/doctor_gpu.h"

#include <dlfcn.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/bytes_text.h"

namespace atl::cli {
namespace {

constexpr int kDevicesListed = 16;

std::string ReadLine(const std::filesystem::path& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

// A shared library and its functions; all null where it cannot be loaded.
class Library {
 public:
  explicit Library(const char* name) : handle_(dlopen(name, RTLD_NOW | RTLD_LOCAL)) {
    if (handle_ == nullptr) error_ = dlerror();
  }
  // Never unloaded: drivers leave threads behind.
  const std::string& error() const { return error_; }
  template <class Function>
  Function* Get(const char* symbol) const {
    return handle_ == nullptr ? nullptr : reinterpret_cast<Function*>(dlsym(handle_, symbol));
  }

 private:
  void* const handle_;
  std::string error_;
};

// "2 x NVIDIA H100 80GB HBM3 (79.2 GiB)", of equal devices one entry; or the driver's error.
struct Devices {
  int error = 0;
  int driver = 0;  // 12040: CUDA 12.4
  int count = 0;
  std::string text;
};

Devices ListDevices(const Library& cuda) {
  Devices found;
  auto* init = cuda.Get<int(unsigned)>("cuInit");
  auto* version = cuda.Get<int(int*)>("cuDriverGetVersion");
  auto* count = cuda.Get<int(int*)>("cuDeviceGetCount");
  auto* name = cuda.Get<int(char*, int, int)>("cuDeviceGetName");
  auto* memory = cuda.Get<int(size_t*, int)>("cuDeviceTotalMem_v2");
  if (init == nullptr || version == nullptr || count == nullptr || name == nullptr ||
      memory == nullptr) {
    found.error = -1;
    return found;
  }
  version(&found.driver);
  found.error = init(0);
  if (found.error == 0) found.error = count(&found.count);
  std::map<std::string, int> kinds;
  for (int device = 0; found.error == 0 && device < std::min(found.count, kDevicesListed);
       ++device) {
    char text[256] = "";
    size_t bytes = 0;
    found.error = name(text, sizeof(text), device);
    if (found.error == 0) found.error = memory(&bytes, device);
    ++kinds[absl::StrCat(text, " (", BytesText(static_cast<int64_t>(bytes)), ")")];
  }
  for (const auto& [kind, number] : kinds) {
    absl::StrAppend(&found.text, found.text.empty() ? "" : ", ", number, " x ", kind);
  }
  return found;
}

}  // namespace

bool HasNvidiaCard() {
  std::error_code error;
  if (std::filesystem::exists("/proc/driver/nvidia/version", error)) return true;
  std::filesystem::directory_iterator device("/sys/bus/pci/devices", error);
  for (; !error && device != std::filesystem::directory_iterator(); device.increment(error)) {
    const bool nvidia = ReadLine(device->path() / "vendor") == "0x10de";
    if (nvidia && ReadLine(device->path() / "class").substr(0, 4) == "0x03") return true;
  }
  return false;
}

Finding CheckGpu(bool card) {
  if (!card) return {Level::kOk, "GPU", "none: --backend cpu", ""};
  const std::string module = ReadLine("/proc/driver/nvidia/version");
  if (module.empty()) {
    return {Level::kWarning, "GPU", "an NVIDIA card without its driver",
            "install NVIDIA's driver, or use --backend cpu"};
  }
  const Library cuda("libcuda.so.1");
  if (!cuda.error().empty()) {
    return {Level::kProblem, "GPU", absl::StrCat(module, ", but ", cuda.error()),
            "install the driver's libraries (libcuda1, or the container toolkit)"};
  }
  const Devices devices = ListDevices(cuda);
  if (devices.error != 0 || devices.count == 0) {
    return {Level::kProblem, "GPU",
            devices.error != 0 ? absl::StrCat("the driver fails with CUDA error ", devices.error)
                               : "the driver offers no device",
            "nvidia-smi says why; may this user open /dev/nvidia*, and is CUDA_VISIBLE_DEVICES "
            "right?"};
  }
  return {Level::kOk, "GPU",
          absl::StrFormat("%s, driver for CUDA %d.%d", devices.text, devices.driver / 1000,
                          devices.driver % 1000 / 10),
          ""};
}

Finding CheckNccl(bool card) {
  if (!card) return {Level::kOk, "NCCL", "not needed without a GPU", ""};
  const Library nccl("libnccl.so.2");
  auto* version = nccl.Get<int(int*)>("ncclGetVersion");
  int number = 0;
  if (version == nullptr || version(&number) != 0) {
    return {Level::kWarning, "NCCL", nccl.error().empty() ? "it does not answer" : nccl.error(),
            "install libnccl2, or name its folder in /etc/ld.so.conf.d: the CUDA build needs it"};
  }
  return {Level::kOk, "NCCL",
          absl::StrCat(number / 10000, ".", number % 10000 / 100, ".", number % 100), ""};
}

}  // namespace atl::cli
