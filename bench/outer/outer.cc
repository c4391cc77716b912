// The parameter server's outer step against a loop that does nothing but move the same bytes.
//
// The step reads the parameters, the momentum and k deltas, and writes the first two. The plain
// loop scales an array in place; it is as long as makes both move equally many bytes.

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

void PlainLoop(std::vector<float>& x, ThreadPool& pool) {
  pool.For(static_cast<int64_t>(x.size()) / kBlock,
           [&](int64_t block, int) { ScaleBlock(x.data() + block * kBlock, kBlock); });
}

struct Row {
  int threads;
  int deltas;
  DType dtype;
};

// Prints one row of the table and returns its ratio.
double Measure(const Row& row) {
  ThreadPool pool(row.threads);
  std::vector<float> theta(kParameters, 1.0f), velocity(kParameters, 0.5f);
  std::vector<std::vector<float>> deltas(row.deltas);
  std::vector<WeightedDelta> weighted;
  const int64_t bytes = SizeOf(row.dtype);
  for (std::vector<float>& delta : deltas) {
    // As bf16 the same memory holds twice as many numbers, small ones: a float of 0.001 is two.
    delta.assign(kParameters * bytes / 4, 0.001f);
    weighted.push_back({{delta.data(), row.dtype, kParameters}, 1.0f / row.deltas});
  }
  const int64_t moved = kParameters * (4 * 4 + row.deltas * bytes);
  std::vector<float> plain(moved / 8 / kBlock * kBlock, 1.0f);
  const Comparison result =
      Compare([&] { PlainLoop(plain, pool); },
              [&] { OuterNesterov(theta, velocity, weighted, 0.7f, 0.8f, pool); }, kRounds);
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
