#include "worker/backends.h"

#include <catch2/catch.hpp>

#include "kernels/cuda/cuda.h"
#include "tests/catch/skip.h"

namespace atl::worker {
namespace {

std::string Refusal(const BackendOptions& options) {
  const absl::StatusOr<WorkerBackend> made = NewWorkerBackend(options);
  REQUIRE_FALSE(made.ok());
  return std::string(made.status().message());
}

TEST_CASE("backends compute in the type that was asked for, or the one they are made for") {
  const auto cpu = NewWorkerBackend({.backend = "cpu", .threads = 1});
  REQUIRE(cpu->backend->Name() == "cpu");
  REQUIRE(cpu->compute == DType::kFloat32);
  REQUIRE(cpu->memory_bytes > 0);
  const auto half =
      NewWorkerBackend({.backend = "reference", .compute = "bf16", .memory_bytes = 5});
  REQUIRE(half->compute == DType::kBfloat16);
  REQUIRE(half->memory_bytes == 5);
}

TEST_CASE("flags that do not fit are refused by name") {
  REQUIRE(Refusal({.backend = "tpu"}) == "--backend tpu: must be cpu, cuda or reference");
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
