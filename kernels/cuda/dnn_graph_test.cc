// The attention graphs, as far as cuDNN looks at them without a device: every tensor and operation
// is taken, and there is an engine for devices that are only described. Whether it computes what it
// should is for the operations' tests on a GPU.

#include <cuda_runtime.h>
#include <dlfcn.h>

#include <catch2/catch.hpp>

#include "absl/strings/str_cat.h"
#include "kernels/cuda/dnn_engine.h"
#include "kernels/cuda/dnn_rules.h"
#include "tests/catch/skip.h"

namespace atl::cuda {
namespace {

TEST_CASE("cuDNN takes every descriptor of the attention graphs") {
  const bool causal = GENERATE(true, false);
  for (const int64_t kv_heads : {12, 4, 1}) {
    for (const int64_t head_dim : {64, 128}) {
      const AttentionShape shape{.batch = 8,
                                 .seq_len = 1024,
                                 .heads = 12,
                                 .kv_heads = kv_heads,
                                 .head_dim = head_dim,
                                 .scale = 0.125f,
                                 .causal = causal};
      const int64_t q = 12 * head_dim, qkv = (12 + 2 * kv_heads) * head_dim;
      const AttentionStrides strides{qkv, qkv, qkv, q, q, qkv, qkv, qkv};
      CAPTURE(causal, kv_heads, head_dim);
      const AttentionGraph forward = ForwardGraph(shape, strides);
      INFO(forward.graph.status());
      REQUIRE(forward.graph.status().ok());
      const AttentionGraph backward = BackwardGraph(shape, strides);
      INFO(backward.graph.status());
      REQUIRE(backward.graph.status().ok());
    }
  }
}

// Returns a device as cuDNN requires it, of the GPUs that this build has bf16 code for.
std::string Device(const std::string& name, int version, int processors, int shared_optin) {
  return absl::StrCat(
      R"({"deviceVer":)", version, R"(,"driverVer":13000,"cudaDeviceId":0,"totalGlobalMem":)",
      R"(80000000000,"maxGridSize":[2147483647,65535,65535],"maxBlockSize":[1024,1024,64],)",
      R"("regsPerBlock":65536,"multiProcessorCount":)", processors, R"(,"warpSize":32,)",
      R"("maxSharedMemoryPerBlock":49152,"maxSharedMemoryPerBlockOptin":)", shared_optin,
      R"(,"reservedSharedMemoryPerBlock":1024,"maxRegistersPerSM":65536,"maxCtasPerSM":32,)",
      R"("maxThreadsPerBlock":1024,"maxThreadsPerSM":2048,"pciDeviceId":0,"isTccDriver":0,)",
      R"("supportCoopLaunch":1,"smClockRateKHz":1500000,"memClockRateKHz":2500000,)",
      R"("l2CacheSize":52428800,"deviceName":")", name, R"("})");
}

// Plans of the models' attention for this target, as far as the version is trusted with it.
void RequirePlans(const DnnTarget& target, bool causal) {
  for (const int64_t kv_heads : {16, 4}) {
    for (const int64_t head_dim : {64, 128}) {
      const AttentionShape shape{.batch = 4,
                                 .seq_len = 1024,
                                 .heads = 16,
                                 .kv_heads = kv_heads,
                                 .head_dim = head_dim,
                                 .scale = 0.125f,
                                 .causal = causal};
      const int64_t q = 16 * head_dim, qkv = (16 + 2 * kv_heads) * head_dim;
      const AttentionStrides strides{qkv, qkv, qkv, q, q, qkv, qkv, qkv};
      CAPTURE(causal, kv_heads, head_dim);
      const auto forward = ForwardGraph(shape, strides).graph.Plan(target);
      INFO(forward.status());
      REQUIRE(forward.ok());
      const auto backward = BackwardGraph(shape, strides).graph.Plan(target);
      INFO(backward.status());
      REQUIRE(backward.ok());

      DnnTarget tighter = target;
      tighter.workspace_max_bytes = backward->workspace_bytes - 1;
      const auto less = BackwardGraph(shape, strides).graph.Plan(tighter);
      REQUIRE((!less.ok() || less->workspace_bytes < backward->workspace_bytes));
    }
  }
}

TEST_CASE("cuDNN has a plan for the models' attention on this machine's GPU") {
  int count = 0, major = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error != cudaSuccess || count == 0) {
    return testing::SkipCase(absl::StrCat("no GPU: ", cudaGetErrorString(error)));
  }
  REQUIRE(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0) == cudaSuccess);
  if (major < 8) return testing::SkipCase("cuda device 0 has no bf16");
  const auto version = static_cast<int64_t>(cudnnGetVersion());
  INFO("cuDNN " << DnnVersionText(version));
  REQUIRE(WhyNotByDnn(version, /*backward=*/true, 1024) == nullptr);
  cudnnHandle_t handle = nullptr;
  REQUIRE(cudnnCreate(&handle) == CUDNN_STATUS_SUCCESS);
  for (const bool causal : {true, false}) RequirePlans({.handle = handle}, causal);
  cudnnDestroy(handle);
}

TEST_CASE("cuDNN has an engine for the models' attention, on Ampere and Hopper") {
  // Beside a GPU it loads what it generates onto that one.
  int count = 0;
  if (cudaGetDeviceCount(&count) == cudaSuccess && count > 0) {
    return testing::SkipCase("a GPU is here, for which there is a case of its own");
  }
  // It generates kernels for devices that are not here, but not without the driver's library.
  void* driver = dlopen("libcuda.so.1", RTLD_NOW);
  if (driver == nullptr) return testing::SkipCase("no NVIDIA driver on this machine");
  dlclose(driver);
  const auto device = DescribeDevice(
      GENERATE(Device("NVIDIA A100", 800, 108, 166912), Device("NVIDIA H200", 900, 132, 232448)));
  REQUIRE(device.ok());
  for (const bool causal : {true, false}) RequirePlans({.device = &device}, causal);
}

TEST_CASE("what does not fit together is seen when the graph is made") {
  DnnGraph graph;
  const int a = graph.Real({1, 1, 8, 16}, {128, 128, 16, 1}, CUDNN_DATA_BFLOAT16);
  const int b = graph.Real({1, 1, 32, 8}, {256, 256, 8, 1}, CUDNN_DATA_BFLOAT16);
  const int c = graph.Real({1, 1, 8, 8}, {64, 64, 8, 1}, CUDNN_DATA_BFLOAT16);
  graph.Multiply(a, b, c);
  REQUIRE_FALSE(graph.status().ok());
}

}  // namespace
}  // namespace atl::cuda
