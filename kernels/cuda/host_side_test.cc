// Tests of what the CUDA backend decides on the host: plans, memory, devices, and how products are
// put.

#include <catch2/catch.hpp>
#include <cmath>
#include <set>
#include <string>
#include <vector>

#include "kernels/async_failure.h"
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/dnn_rules.h"
#include "kernels/cuda/lt_plan_key.h"
#include "kernels/cuda/memory.h"
#include "kernels/cuda/plan_cache.h"
#include "kernels/cuda/product.h"

namespace atl {
namespace {

// ---- Plans ----

struct Shape {
  int size = 0;
  bool operator==(const Shape&) const = default;
  uint64_t Hash() const { return 7; }  // all collide: equality decides
};

TEST_CASE("a plan is made once per shape, and the one used longest ago makes room") {
  PlanCache<Shape, std::string> cache(2);
  std::vector<int> made;
  const auto get = [&](int size) {
    return cache.Get({size}, [&] {
      made.push_back(size);
      return std::to_string(size);
    });
  };
  REQUIRE(get(1) == "1");
  REQUIRE(get(2) == "2");
  REQUIRE(get(1) == "1");
  REQUIRE(made == std::vector<int>{1, 2});
  REQUIRE(get(3) == "3");  // 2 goes
  REQUIRE(get(1) == "1");
  REQUIRE(made == std::vector<int>{1, 2, 3});
  REQUIRE(get(2) == "2");
  REQUIRE(made == std::vector<int>{1, 2, 3, 2});
  REQUIRE(cache.size() == 2);
}

// ---- Products ----

Tensor F32(float* data, int64_t rows, int64_t cols, int64_t stride) {
  return {data, DType::kFloat32, rows, cols, stride};
}

TEST_CASE("products differ as plans in everything but addresses of the same alignment") {
  alignas(256) static float memory[4096];
  LinearForward op{
      .x = F32(memory, 4, 8, 8), .w = F32(memory + 512, 6, 8, 8), .y = F32(memory + 1024, 4, 6, 6)};
  const LtCall::Shape base = MakeLtCall(MakeFusedProduct(op)).shape;
  REQUIRE(base.m == 6);
  REQUIRE(base.n == 4);
  REQUIRE(base.k == 8);
  REQUIRE(base.a_transposed);
  REQUIRE_FALSE(base.b_transposed);
  REQUIRE(base.d.alignment == 256);

  LinearForward elsewhere = op;
  elsewhere.y = F32(memory + 2048, 4, 6, 6);
  REQUIRE(MakeLtCall(MakeFusedProduct(elsewhere)).shape == base);

  const auto differs = [&](const LinearForward& other) {
    const LtCall::Shape shape = MakeLtCall(MakeFusedProduct(other)).shape;
    return !(shape == base) && shape.Hash() != base.Hash();
  };
  LinearForward odd = op, wide = op, bias = op, add = op;
  odd.y = F32(memory + 1025, 4, 6, 6);
  wide.y = F32(memory + 1024, 4, 6, 7);
  bias.bias = F32(memory + 2048, 1, 6, 6);
  add.add = F32(memory + 2048, 4, 6, 6);
  for (const LinearForward& other : {odd, wide, bias, add}) REQUIRE(differs(other));
}

TEST_CASE("a plan is not used again where bias or GELU's argument are aligned otherwise") {
  alignas(256) static float memory[4096];
  float *const bias = memory + 2048, *const pre = memory + 3072;
  LinearForward op{.x = F32(memory, 4, 8, 8),
                   .w = F32(memory + 512, 8, 8, 8),
                   .bias = F32(bias, 1, 8, 8),
                   .y = F32(memory + 1024, 4, 8, 8),
                   .activation = Activation::kGeluTanh,
                   .pre = F32(pre, 4, 8, 8)};
  const auto key_of = [](const LinearForward& op) {
    return MakeLtPlanKey(MakeLtCall(MakeFusedProduct(op)));
  };
  const LtPlanKey key = key_of(op);
  REQUIRE(key.bias_alignment == 256);
  REQUIRE(key.aux_alignment == 256);

  LinearForward alike = op, by_bias = op, by_pre = op;
  alike.bias = F32(bias + 256, 1, 8, 8);
  REQUIRE(key_of(alike) == key);
  REQUIRE(key_of(alike).Hash() == key.Hash());
  by_bias.bias = F32(bias + 4, 1, 8, 8);
  by_pre.pre = F32(pre + 4, 4, 8, 8);
  REQUIRE(key_of(by_bias).bias_alignment == 16);
  REQUIRE(key_of(by_pre).aux_alignment == 16);
  for (const LinearForward& other : {by_bias, by_pre}) {
    REQUIRE(MakeLtCall(MakeFusedProduct(other)).shape == key.shape);
    REQUIRE_FALSE(key_of(other) == key);
    REQUIRE(key_of(other).Hash() != key.Hash());
  }
  REQUIRE(key_of(by_bias).Hash() != key_of(by_pre).Hash());

  // Operands that are not accessed do not count.
  op.activation = Activation::kNone;
  op.bias = {};
  REQUIRE(key_of(op).bias_alignment == 0);
  REQUIRE(key_of(op).aux_alignment == 0);
}

TEST_CASE("only what cuBLASLt's GELU is exact for is fused with it") {
  static float memory[64];
  const Tensor x = F32(memory, 2, 2, 2);
  LinearForward op{.x = x, .w = x, .y = x, .activation = Activation::kGeluTanh, .pre = x};
  REQUIRE(MakeFusedProduct(op).epilogue == Epilogue::kGelu);
  op.bias = F32(memory, 1, 2, 2);
  REQUIRE(MakeFusedProduct(op).epilogue == Epilogue::kGeluBias);
  op.add = x;  // is added behind the activation
  REQUIRE(MakeFusedProduct(op).epilogue == Epilogue::kNone);
  op.add = {};
  op.activation = Activation::kGeluErf;
  REQUIRE(MakeFusedProduct(op).epilogue == Epilogue::kNone);
}

// ---- cuDNN's versions ----

TEST_CASE("attention that a version of cuDNN gets wrong is not put to it") {
  const auto taken = [](int64_t version, bool backward, int64_t seq_len) {
    return WhyNotByDnn(version, backward, seq_len) == nullptr;
  };
  REQUIRE(DnnVersionText(91002) == "9.10.2");
  for (const bool backward : {false, true}) {
    REQUIRE_FALSE(taken(8907, backward, 1024));
    REQUIRE(taken(90900, backward, 1024));
    REQUIRE_FALSE(taken(91000, backward, 1024));
    REQUIRE_FALSE(taken(91001, backward, 1024));
    REQUIRE(taken(91002, backward, 1024));
  }
  REQUIRE(taken(91500, false, 1000));
  REQUIRE_FALSE(taken(91500, true, 1000));
  REQUIRE(taken(91501, true, 1000));
}

TEST_CASE("cuDNN before 9.10 is not given infinities to mask with") {
  REQUIRE(std::isfinite(DnnMinusInfinity(90999)));
  REQUIRE(std::isinf(DnnMinusInfinity(91000)));
}

// ---- Memory ----

TEST_CASE("host blocks are used again, and idle ones are bounded") {
  std::set<void*> alive;
  int64_t gotten = 0;
  const auto get = [&](int64_t bytes) -> void* {
    if (bytes > 1 << 20) return nullptr;
    ++gotten;
    void* block = ::operator new(static_cast<size_t>(bytes));
    alive.insert(block);
    return block;
  };
  const auto release = [&](void* block) {
    alive.erase(block);
    ::operator delete(block);
  };
  {
    BlockPool pool(16384, get, release);
    void* block = pool.Take(5000);
    pool.GiveBack(block);
    REQUIRE(pool.idle_bytes() == 8192);
    REQUIRE(pool.Take(8000) == block);  // the same size class
    REQUIRE(gotten == 1);
    void* other = pool.Take(8192);
    void* third = pool.Take(8192);
    for (void* taken : {block, other, third}) pool.GiveBack(taken);
    REQUIRE(pool.idle_bytes() == 16384);
    REQUIRE(alive.size() == 2);
    REQUIRE(pool.Take(1 << 21) == nullptr);
  }
  REQUIRE(alive.empty());
}

// ---- Failures ----

TEST_CASE(
    "a communicator's failure is reported while it exists, and afterwards if it was not read") {
  FailureSources sources;
  auto lost = std::make_shared<AsyncFailure>();
  auto unseen = std::make_shared<AsyncFailure>();
  sources.Add(lost);
  sources.Add(unseen);
  REQUIRE(sources.First().ok());
  REQUIRE(lost->Keep(absl::UnavailableError("rank 1 has failed")));
  REQUIRE_FALSE(lost->Keep(absl::AbortedError("too late")));
  REQUIRE(sources.First().message() == "rank 1 has failed");
  REQUIRE(sources.First().message() == "rank 1 has failed");
  lost.reset();  // and with it what it broke: the next group starts afresh
  REQUIRE(sources.First().ok());
  REQUIRE(unseen->Keep(absl::AbortedError("stopped")));
  unseen.reset();
  REQUIRE(sources.First().message() == "stopped");
  REQUIRE(sources.First().ok());
}

// ---- Devices ----

TEST_CASE("a device is found by index or by the beginning of its UUID") {
  std::vector<CudaDevice> devices(2);
  devices[0] = {0, "GPU-aa11", "H200", 1, 9, 0};
  devices[1] = {1, "GPU-aa22", "A100", 1, 8, 0};
  REQUIRE(FindCudaDevice(devices, "")->index == 0);
  REQUIRE(FindCudaDevice(devices, "1")->index == 1);
  REQUIRE(FindCudaDevice(devices, "GPU-aa2")->index == 1);
  REQUIRE(FindCudaDevice(devices, "aa11")->index == 0);
  REQUIRE(FindCudaDevice(devices, "2").status().message() ==
          "no CUDA device 2; there are: 0 = GPU-aa11 (H200), 1 = GPU-aa22 (A100)");
  REQUIRE(absl::IsInvalidArgument(FindCudaDevice(devices, "aa").status()));
  REQUIRE(absl::IsNotFound(FindCudaDevice(devices, "bb").status()));
}

TEST_CASE("a UUID that begins with digits is no index, and slices of a GPU have UUIDs too") {
  std::vector<CudaDevice> devices(3);
  devices[0] = {0, "GPU-12345678-aa", "H200", 1, 9, 0};
  devices[1] = {1, "MIG-9876-bb", "H200 MIG 1g.18gb", 1, 9, 0};
  devices[2] = {2, "MIG-cc", "H200 MIG 1g.18gb", 1, 9, 0};
  REQUIRE(FindCudaDevice(devices, "1234")->index == 0);
  REQUIRE(FindCudaDevice(devices, "12345678")->index == 0);
  REQUIRE(FindCudaDevice(devices, "9876")->index == 1);
  REQUIRE(FindCudaDevice(devices, "MIG-c")->index == 2);
  REQUIRE(FindCudaDevice(devices, "2")->index == 2);
  REQUIRE(absl::IsNotFound(FindCudaDevice(devices, "123").status()));
  REQUIRE(absl::IsNotFound(FindCudaDevice(devices, "1235").status()));
}

}  // namespace
}  // namespace atl
