// The parameter server's outer step against loops that do nothing but move the same bytes: both
// read the parameters, the momentum and k deltas, and write the first two.

#include <cstdint>
#include <vector>

#include "bench/measure.h"
#include "kernels/host_ops.h"
#include "kernels/simd.h"

namespace atl::bench {
namespace {

constexpr int64_t kParameters = 16 << 20;  // 64 MB each: no cache holds them
constexpr int kRounds = 41;
constexpr double kGoal = 0.85;
constexpr int64_t kBlock = 1 << 16;

ATOLL_KERNEL(ScaleBlock, (float* x, int64_t n), (x, n)) {
  for (int64_t i = 0; i < n; i += simd::kLanes) {
    simd::Store(x + i, simd::Load(x + i) * 0.999999f);
  }
}

// The sum of n numbers, so that reading them is not in vain.
ATOLL_KERNEL(ReadBlock, (const float* x, int64_t n, float* sum), (x, n, sum)) {
  simd::V16 sums[4] = {};
  for (int64_t i = 0; i < n; i += 4 * simd::kLanes) {
#pragma GCC unroll 4
    for (int lane = 0; lane < 4; ++lane) sums[lane] += simd::Load(x + i + lane * simd::kLanes);
  }
  *sum = simd::Sum(sums[0] + sums[1] + sums[2] + sums[3]);
}

struct Shard {
  std::vector<float> theta, velocity;
  std::vector<std::vector<float>> deltas;  // bf16 ones are half as long
};

// One array after the other, block by block.
void PlainLoop(Shard& shard, ThreadPool& pool) {
  std::vector<float> sums(kParameters / kBlock);
  pool.For(kParameters / kBlock, [&](int64_t block, int) {
    ScaleBlock(shard.theta.data() + block * kBlock, kBlock);
    ScaleBlock(shard.velocity.data() + block * kBlock, kBlock);
    for (const std::vector<float>& delta : shard.deltas) {
      const int64_t floats = static_cast<int64_t>(delta.size()) / (kParameters / kBlock);
      ReadBlock(delta.data() + block * floats, floats, &sums[block]);
    }
  });
}

struct Row {
  int threads;
  int deltas;
  DType dtype;
};

// Prints one row of the table and returns its ratio.
double Measure(const Row& row) {
  ThreadPool pool(row.threads);
  Shard shard = {std::vector<float>(kParameters, 1.0f), std::vector<float>(kParameters, 0.5f), {}};
  std::vector<WeightedDelta> weighted;
  const int64_t bytes = SizeOf(row.dtype);
  shard.deltas.resize(row.deltas);
  for (std::vector<float>& delta : shard.deltas) {
    delta.assign(kParameters * bytes / 4, 0.001f);
    weighted.push_back({{delta.data(), row.dtype, kParameters}, 1.0f / row.deltas});
  }
  const int64_t moved = kParameters * (4 * 4 + row.deltas * bytes);
  const Comparison result = Compare(
      [&] { PlainLoop(shard, pool); },
      [&] { OuterNesterov(shard.theta, shard.velocity, weighted, 0.7f, 0.8f, pool); }, kRounds);
  std::printf("%7d  %d x %s  %9.1f  %9.1f  %6.2f\n", row.threads, row.deltas,
              row.dtype == DType::kBfloat16 ? "bf16" : "fp32", 1e-9 * moved / result.base_seconds,
              1e-9 * moved / result.work_seconds, result.speed);
  return result.speed;
}

void Run() {
  std::printf("Outer step on %lld M parameters, GB/s of bytes that must move\n",
              static_cast<long long>(kParameters >> 20));
  std::printf("threads  deltas    plain loop  outer step  ratio\n");
  double worst = 1e9;
  for (int threads : {1, 2}) {
    for (const auto& [deltas, dtype] :
         {std::pair(1, DType::kFloat32), std::pair(3, DType::kFloat32),
          std::pair(3, DType::kBfloat16)}) {
      worst = std::min(worst, Measure({threads, deltas, dtype}));
    }
  }
  PrintFigureAtLeast("outer.step_vs_bandwidth", worst, "ratio", kGoal);
}

}  // namespace
}  // namespace atl::bench

int main() { atl::bench::Run(); }
