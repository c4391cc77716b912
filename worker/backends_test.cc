#include "worker/backends.h"

#include <catch2/catch.hpp>
#include <future>
#include <thread>

#include "tests/catch/skip.h"

namespace atl::worker {
namespace {

constexpr int64_t kGiB = int64_t{1} << 30;

std::string Refusal(const DeviceFlags& flags) {
  const auto found = FindWorkerDevices(flags);
  REQUIRE_FALSE(found.ok());
  return std::string(found.status().message());
}

// A machine with these GPUs.
struct Machine {
  std::vector<CudaDevice> gpus = {{0, "GPU-aa01", "NVIDIA H200", 139 * kGiB, 9, 0},
                                  {1, "GPU-aa02", "NVIDIA H200", 139 * kGiB, 9, 0},
                                  {2, "GPU-bb03", "Tesla T4", 15 * kGiB, 7, 5},
                                  {3, "GPU-cc04", "NVIDIA A100", 79 * kGiB, 8, 0}};
  absl::StatusOr<std::vector<WorkerDevice>> Find(DeviceFlags flags) const {
    flags.backend = "cuda";
    return FindWorkerDevices(flags, [this] { return gpus; });
  }
  std::vector<std::string> Uuids(const std::string& device) const {
    const auto found = Find({.device = device});
    INFO(found.status());
    REQUIRE(found.ok());
    std::vector<std::string> uuids;
    for (const WorkerDevice& one : *found) uuids.push_back(one.info.uuid);
    return uuids;
  }
  std::string Refusal(const DeviceFlags& flags) const {
    const auto found = Find(flags);
    REQUIRE_FALSE(found.ok());
    return std::string(found.status().message());
  }
};

using Names = std::vector<std::string>;

TEST_CASE("a host is cut into devices that share its threads and memory") {
  const auto cpu = FindWorkerDevices({.devices = 2, .threads = 5, .memory_bytes = 100});
  REQUIRE(cpu->size() == 2);
  REQUIRE((*cpu)[1].info.kind == "cpu");
  REQUIRE((*cpu)[1].info.compute == "fp32");
  REQUIRE((*cpu)[1].info.threads == 2);
  REQUIRE((*cpu)[1].info.memory_bytes == 50);
  REQUIRE(GetComputeType(*cpu) == DType::kFloat32);
  const auto local = NewLocalDevices(*cpu);
  REQUIRE((*local)[1].index == 1);
  REQUIRE((*local)[1].compute->Name() == "cpu");
  REQUIRE((*local)[1].memory_bytes == 50);
  REQUIRE((*local)[1].sending == nullptr);
  REQUIRE((*FindWorkerDevices({}))[0].info.memory_bytes > 0);
}

TEST_CASE("a host's memory for a model is its devices' only where these are cut from it") {
  const HostMemory cpu = GetHostMemory(*FindWorkerDevices({.devices = 2, .memory_bytes = 100}));
  REQUIRE(cpu.bytes == 100);
  REQUIRE(cpu.has_devices);
  REQUIRE((*FindWorkerDevices({}))[0].info.host_memory_bytes == 0);
  // However much or little the GPUs have.
  const HostMemory machine = GetHostMemory(*FindWorkerDevices({}));
  const Machine gpus;
  for (const DeviceFlags& flags :
       {DeviceFlags{.device = "all"}, DeviceFlags{.memory_bytes = kGiB}}) {
    const HostMemory host = GetHostMemory(*gpus.Find(flags));
    REQUIRE(host.bytes == machine.bytes);
    REQUIRE_FALSE(host.has_devices);
    for (const WorkerDevice& device : *gpus.Find(flags)) {
      REQUIRE(device.info.host_memory_bytes == machine.bytes);
    }
  }
}

TEST_CASE("messages that wait have a quarter of the host's memory, whatever is said of devices") {
  REQUIRE(InboxBytes({16 * kGiB, true}) == 4 * kGiB);
  REQUIRE(InboxBytes({8 * kGiB, false}) == 2 * kGiB);
  REQUIRE(InboxBytes({100, true}) == kGiB / 4);
  REQUIRE(InboxBytes({1000 * kGiB, true}) == 4 * kGiB);
  REQUIRE(GetCollectiveWindowBytes({8 * kGiB, true}) == 2 * kGiB);
  REQUIRE(GetCollectiveWindowBytes({100, true}) == kGiB / 4);
  REQUIRE(GetCollectiveWindowBytes({1000 * kGiB, false}) == 16 * kGiB);
  // A worker that says nothing has the machine's, and this one has more than the least.
  const HostMemory machine = GetHostMemory(*FindWorkerDevices({}));
  REQUIRE(machine.bytes > kGiB);
  REQUIRE(InboxBytes(machine) > kGiB / 4);
}

TEST_CASE("GPUs are chosen by index or UUID, in any order, or all of them") {
  const Machine machine;
  REQUIRE(machine.Uuids("") == Names{"GPU-aa01"});
  REQUIRE(machine.Uuids("3,0") == Names{"GPU-cc04", "GPU-aa01"});
  REQUIRE(machine.Uuids("GPU-aa02,bb,0") == Names{"GPU-aa02", "GPU-bb03", "GPU-aa01"});
  REQUIRE(machine.Uuids("all") == Names{"GPU-aa01", "GPU-aa02", "GPU-bb03", "GPU-cc04"});
}

TEST_CASE("GPUs of one worker compute in the type that all of them have") {
  const Machine machine;
  const auto both = machine.Find({.device = "0,3"});
  REQUIRE(GetComputeType(*both) == DType::kBfloat16);
  REQUIRE((*both)[0].info.kind == "NVIDIA H200 bf16");
  REQUIRE((*both)[1].info.memory_bytes == 79 * kGiB);
  REQUIRE(GetComputeType(*machine.Find({.device = "all"})) == DType::kFloat32);
  REQUIRE(machine.Refusal({.device = "0,2", .compute = "bf16"}) ==
          "--compute bf16: GPU-bb03 (Tesla T4) has compute capability 7.5; bf16 needs 8.0");
}

TEST_CASE("GPUs share --memory-bytes, and none has to hold more than it has") {
  const Machine machine;
  REQUIRE((*machine.Find({.device = "0,2", .memory_bytes = 20 * kGiB}))[1].info.memory_bytes ==
          10 * kGiB);
  REQUIRE(machine.Refusal({.device = "0,2", .memory_bytes = 40 * kGiB}) ==
          "--memory-bytes 42949672960: 21474836480 for each of 2 devices, but GPU-bb03 (Tesla T4) "
          "has 16106127360");
}

TEST_CASE("GPUs that work together have all kernels loaded before NCCL's wait on them") {
  const Machine machine;
  const auto loading = [&](const DeviceFlags& flags) {
    REQUIRE(machine.Find(flags).ok());
    const char* const mode = getenv("CUDA_MODULE_LOADING");
    return std::string(mode == nullptr ? "" : mode);
  };
  unsetenv("CUDA_MODULE_LOADING");
  CHECK(loading({.device = "0"}).empty());
  CHECK(loading({.device = "0,1"}) == "EAGER");
  unsetenv("CUDA_MODULE_LOADING");
  CHECK(loading({.device = "0", .joins_others = true}) == "EAGER");
  setenv("CUDA_MODULE_LOADING", "LAZY", 1);
  CHECK(loading({.device = "all"}) == "LAZY");  // the operator's setting
}

TEST_CASE("the_environment_does_not_change_while_other_threads_may_read_it") {
  const Machine machine;
  unsetenv("CUDA_MODULE_LOADING");
  std::promise<void> end;
  std::thread other([ended = end.get_future()] { ended.wait(); });
  CHECK(machine.Find({.device = "0,1"}).ok());
  CHECK(getenv("CUDA_MODULE_LOADING") == nullptr);
  end.set_value();
  other.join();
}

TEST_CASE("wrong names of GPUs are refused with what there is") {
  const Machine machine;
  const std::string there =
      "0 = GPU-aa01 (NVIDIA H200), 1 = GPU-aa02 (NVIDIA H200), 2 = GPU-bb03 (Tesla T4), "
      "3 = GPU-cc04 (NVIDIA A100)";
  REQUIRE(machine.Refusal({.device = "0,4"}) ==
          "--device 0,4: no CUDA device 4; there are: " + there);
  REQUIRE(machine.Refusal({.device = "GPU-x"}) ==
          "--device GPU-x: no CUDA device has a UUID that begins with \"GPU-x\"; there are: " +
              there);
  REQUIRE(machine.Refusal({.device = "aa"}) ==
          "--device aa: \"aa\" begins two CUDA devices' UUIDs; there are: " + there);
  REQUIRE(machine.Refusal({.device = "1,GPU-aa02"}) ==
          "--device 1,GPU-aa02: \"1\" and \"GPU-aa02\" are both GPU-aa02 (NVIDIA H200); name each "
          "device once");
  REQUIRE(machine.Refusal({.device = "0,,1"}) ==
          "--device 0,,1: an empty name between commas; name each device once");
  REQUIRE(machine.Refusal({.device = "all,1"}) == "--device all,1: \"all\" stands alone");
  REQUIRE(machine.Refusal({.devices = 2}) ==
          "--devices 2: GPUs are not cut; choose them with --device");
}

TEST_CASE("flags that do not fit are refused by name") {
  REQUIRE(Refusal({.backend = "tpu"}) == "--backend tpu: must be cpu or cuda");
  REQUIRE(Refusal({.compute = "fp16"}) == "--compute fp16: must be fp32 or bf16");
  REQUIRE(Refusal({.compute = "bf16"}) == "--compute bf16: cpu computes in fp32 only");
  REQUIRE(Refusal({.device = "1"}) == "--device 1: only --backend cuda has devices to choose");
}

TEST_CASE("without a GPU, or a build for one, the CUDA backend says what is missing") {
  if (CudaDevices().ok()) {
    return testing::SkipCase("this machine has a GPU");
  }
  const std::string message = Refusal({.backend = "cuda"});
  CAPTURE(message);
  REQUIRE(message.rfind("--backend cuda: ", 0) == 0);
  const bool says = message.find("--config=cuda") != std::string::npos ||
                    message.find("NVIDIA") != std::string::npos;
  REQUIRE(says);
}

}  // namespace
}  // namespace atl::worker
