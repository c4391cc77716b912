// The parameter server's outer step and what merges measure, and every codec at the worker and the
// server, against loops that do nothing but move the same bytes. The step reads the parameters, the
// optimizer's slots and k deltas, and writes all but the last; a merge's Gram matrix reads k
// deltas; encoding reads a delta and a residual, and writes the residual and codes; decoding reads
// codes and writes numbers. With arguments: the figures whose names begin with one of them.

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "bench/measure.h"
#include "common/protocol/outer_optimizer.h"
#include "kernels/host_ops.h"
#include "kernels/simd.h"
#include "paramserver/core/outer_optimizer.h"

namespace atl::bench {
namespace {

constexpr int64_t kParameters = 16 << 20;  // 64 MB each: no cache holds them
constexpr int kRounds = 41;
constexpr double kGoal = 0.85, kCodecGoal = 0.7, kTopKGoal = 0.15;
constexpr Encoding kQuantized[] = {Encoding::kInt8, Encoding::kInt4, Encoding::kE3m0,
                                   Encoding::kTopK};

double GetSpeedGoal(Encoding encoding) {
  return encoding == Encoding::kTopK ? kTopKGoal : kCodecGoal;
}
constexpr int64_t kBlock = 1 << 16;

ATOLL_KERNEL(ScaleBlock, (float* x, int64_t n), (x, n)) {
  for (int64_t i = 0; i < n; i += simd::kLanes) {
    simd::Store(x + i, simd::Load<V>(x + i) * 0.999999f);
  }
}

// The sum of n numbers, so that the compiler does not drop the reads.
ATOLL_KERNEL(ReadBlock, (const float* x, int64_t n, float* sum), (x, n, sum)) {
  V sums[4] = {};
  for (int64_t i = 0; i < n; i += 4 * simd::kLanes) {
#pragma GCC unroll 4
    for (int lane = 0; lane < 4; ++lane) sums[lane] += simd::Load<V>(x + i + lane * simd::kLanes);
  }
  *sum = simd::Sum(sums[0] + sums[1] + sums[2] + sums[3]);
}

struct Shard {
  std::vector<float> theta, velocity;
  std::vector<std::vector<float>> deltas;  // as long as they are when encoded
  std::vector<float> second = {};          // slot, of optimizers that have two
};

// One array after the other, block by block.
void PlainLoop(Shard& shard, ThreadPool& pool) {
  std::vector<float> sums(kParameters / kBlock);
  pool.For(kParameters / kBlock, [&](int64_t block, int) {
    ScaleBlock(shard.theta.data() + block * kBlock, kBlock);
    for (std::vector<float>* slot : {&shard.velocity, &shard.second}) {
      if (!slot->empty()) ScaleBlock(slot->data() + block * kBlock, kBlock);
    }
    for (const std::vector<float>& delta : shard.deltas) {
      const int64_t floats = static_cast<int64_t>(delta.size()) / (kParameters / kBlock);
      ReadBlock(delta.data() + block * floats, floats, &sums[block]);
    }
  });
}

struct Row {
  int threads;
  int deltas;
  Encoding encoding;
  std::string optimizer = "nesterov";
};

// Prints one row of the table and returns its ratio.
double Measure(const Row& row) {
  ThreadPool pool(row.threads);
  Shard shard = {std::vector<float>(kParameters, 1.0f), std::vector<float>(kParameters, 0.5f), {}};
  std::vector<WeightedDelta> weighted;
  const int64_t bytes = EncodedBytes(row.encoding, kParameters);
  shard.deltas.resize(row.deltas);
  for (std::vector<float>& delta : shard.deltas) {
    delta.assign(bytes / 4, 0.001f);
    if (IsQuantized(row.encoding)) {
      EncodeDelta(row.encoding, std::vector<float>(kParameters, 0.001f), {},
                  std::as_writable_bytes(std::span(delta)), pool);
    }
    weighted.push_back({{delta.data(), row.encoding, kParameters}, 1.0f / row.deltas});
  }
  OuterSpec spec;
  spec.optimizer = row.optimizer;
  const auto optimizer = ps::MakeOuterOptimizer(spec);
  const size_t slots = GetOuterOptimizer(spec).slots.size();
  if (slots < 1) shard.velocity.clear();
  if (slots > 1) shard.second.assign(kParameters, 0.25f);
  ps::OuterShard state{shard.theta, {}};
  if (slots > 0) state.slots.emplace_back(shard.velocity);
  if (slots > 1) state.slots.emplace_back(shard.second);
  const int64_t moved = kParameters * 8 * static_cast<int64_t>(1 + slots) + row.deltas * bytes;
  Version version = 0;
  const Comparison result = Compare([&] { PlainLoop(shard, pool); },
                                    [&] {
                                      optimizer->Step(state, {weighted, 0.7, 0.8, ++version}, pool);
                                    },
                                    kRounds);
  std::printf("%7d  %d x %s  %9.1f  %9.1f  %6.2f  %s\n", row.threads, row.deltas,
              GetEncodingInfo(row.encoding).name, 1e-9 * moved / result.base_seconds,
              1e-9 * moved / result.work_seconds, result.speed, row.optimizer.c_str());
  return result.speed;
}

// The same of quantising one delta.
double MeasureEncode(int threads, Encoding encoding) {
  ThreadPool pool(threads);
  const int64_t bytes = EncodedBytes(encoding, kParameters);
  std::vector<float> delta(kParameters), residual(kParameters, 0.25f), codes(bytes / 4);
  for (int64_t i = 0; i < kParameters; ++i) delta[i] = 0.001f * static_cast<float>(i % 1009 - 504);
  const int64_t moved = kParameters * 12 + bytes;
  const Comparison result = Compare(
      [&] {
        std::vector<float> sums(kParameters / kBlock);
        pool.For(kParameters / kBlock, [&](int64_t block, int) {
          ReadBlock(delta.data() + block * kBlock, kBlock, &sums[block]);
          ScaleBlock(residual.data() + block * kBlock, kBlock);
          const int64_t floats = bytes / 4 / (kParameters / kBlock);
          std::memset(codes.data() + block * floats, static_cast<int>(block), floats * 4);
        });
      },
      [&] {
        EncodeDelta(encoding, delta, residual, std::as_writable_bytes(std::span(codes)), pool);
      },
      kRounds);
  std::printf("%7d  encode %s %9.1f  %9.1f  %6.2f\n", threads, GetEncodingInfo(encoding).name,
              1e-9 * moved / result.base_seconds, 1e-9 * moved / result.work_seconds, result.speed);
  return result.speed;
}

// The same of decoding one.
double MeasureDecode(int threads, Encoding encoding) {
  ThreadPool pool(threads);
  const int64_t bytes = EncodedBytes(encoding, kParameters);
  std::vector<float> numbers(kParameters), codes(bytes / 4);
  for (int64_t i = 0; i < kParameters; ++i)
    numbers[i] = 0.001f * static_cast<float>(i % 1009 - 504);
  EncodeDelta(encoding, numbers, {}, std::as_writable_bytes(std::span(codes)), pool);
  const int64_t moved = kParameters * 4 + bytes;
  const Comparison result = Compare(
      [&] {
        std::vector<float> sums(kParameters / kBlock);
        pool.For(kParameters / kBlock, [&](int64_t block, int) {
          const int64_t floats = bytes / 4 / (kParameters / kBlock) / 64 * 64;
          ReadBlock(codes.data() + block * floats, floats, &sums[block]);
          std::memset(numbers.data() + block * kBlock, static_cast<int>(block), kBlock * 4);
        });
      },
      [&] {
        DecodeDelta({codes.data(), encoding, kParameters}, numbers, pool);
      },
      kRounds);
  std::printf("%7d  decode %s %9.1f  %9.1f  %6.2f\n", threads, GetEncodingInfo(encoding).name,
              1e-9 * moved / result.base_seconds, 1e-9 * moved / result.work_seconds, result.speed);
  return result.speed;
}

// The Gram matrix of three deltas and the optimizer's reference slot: all that a merge has servers
// do before the step, whose weights the merge then is.
double MeasureMerge(int threads, Encoding encoding) {
  ThreadPool pool(threads);
  constexpr int kDeltas = 4;
  const int64_t bytes = EncodedBytes(encoding, kParameters);
  const std::vector<float> numbers(kParameters, 0.001f);
  std::vector<std::vector<float>> deltas(kDeltas);
  std::vector<DeltaView> views;
  for (std::vector<float>& delta : deltas) {
    delta = numbers;
    if (IsQuantized(encoding)) {
      delta.resize(bytes / 4);
      EncodeDelta(encoding, numbers, {}, std::as_writable_bytes(std::span(delta)), pool);
    }
    views.push_back({delta.data(), encoding, kParameters});
  }
  std::vector<double> gram(kDeltas * kDeltas);
  const Comparison result = Compare(
      [&] {
        std::vector<float> sums(kParameters / kBlock);
        pool.For(kParameters / kBlock, [&](int64_t block, int) {
          for (const std::vector<float>& delta : deltas) {
            const int64_t floats = std::ssize(delta) / (kParameters / kBlock) / 64 * 64;
            ReadBlock(delta.data() + block * floats, floats, &sums[block]);
          }
        });
      },
      [&] { GramMatrix(views, gram, pool); }, kRounds);
  std::printf("%7d  merge %d x %s %9.1f  %9.1f  %6.2f\n", threads, kDeltas,
              GetEncodingInfo(encoding).name, 1e-9 * bytes * kDeltas / result.base_seconds,
              1e-9 * bytes * kDeltas / result.work_seconds, result.speed);
  return result.speed;
}

void Run(std::span<char*> names) {
  std::printf("Outer step on %lld M parameters, GB/s of bytes that must move\n",
              static_cast<long long>(kParameters >> 20));
  std::printf("threads  deltas    plain loop  outer step  ratio\n");
  const auto figure = [&](const std::string& name, double goal, const auto& measure) {
    const bool wanted =
        std::any_of(names.begin(), names.end(), [&](const char* n) { return name.starts_with(n); });
    if (!names.empty() && !wanted) return;
    double least = 1e9;
    for (int threads : {1, 2}) least = std::min(least, measure(threads));
    PrintFigureAtLeast("outer." + name + "_vs_bandwidth", least, "ratio", goal);
  };
  figure("step", kGoal, [](int threads) {
    return std::min({Measure({threads, 1, Encoding::kFloat32}),
                     Measure({threads, 3, Encoding::kFloat32}),
                     Measure({threads, 3, Encoding::kBfloat16})});
  });
  for (const OuterOptimizerInfo& info : OuterOptimizers()) {
    figure(info.name, kGoal, [&](int threads) {
      return Measure({threads, 3, Encoding::kFloat32, info.name});
    });
  }
  figure("merge", kGoal, [](int threads) { return MeasureMerge(threads, Encoding::kFloat32); });
  for (const Encoding encoding : kQuantized) {
    const std::string name = GetEncodingInfo(encoding).name;
    figure(name + "_encode", GetSpeedGoal(encoding),
           [&](int threads) { return MeasureEncode(threads, encoding); });
    figure(name + "_decode", GetSpeedGoal(encoding),
           [&](int threads) { return MeasureDecode(threads, encoding); });
    figure(name + "_step", GetSpeedGoal(encoding), [&](int threads) {
      return Measure({threads, 3, encoding});
    });
  }
}

}  // namespace
}  // namespace atl::bench

int main(int argc, char** argv) { atl::bench::Run(std::span(argv, argc).subspan(1)); }
