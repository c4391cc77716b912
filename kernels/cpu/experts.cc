// Experts: rows sorted by expert, and products by group, each on one thread.

#include <algorithm>
#include <vector>

#include "kernels/cpu/activation.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/gemm.h"
#include "kernels/simd.h"

namespace atl {
namespace {

using simd::kLanes;
using simd::LoadUpTo;
using simd::StoreUpTo;

// Rows of a group per product, and rows of a weight gradient: few, because a group may be small
// and groups are what threads share.
constexpr int64_t kGroupRows = 128, kGradientRows = 256;

// y += x.
ATOLL_KERNEL(AddToRun, (const float* x, float* y, int64_t n), (x, y, n)) {
  for (int64_t i = 0; i < n; i += kLanes) {
    StoreUpTo(y + i, LoadUpTo<V>(y + i, n - i) + LoadUpTo<V>(x + i, n - i), n - i);
  }
}

ATOLL_KERNEL(WeightedGatedRun,
             (Activation kind, const float* gate, const float* up, float weight, float* y,
              int64_t n),
             (kind, gate, up, weight, y, n)) {
  for (int64_t i = 0; i < n; i += kLanes) {
    const V g = LoadUpTo<V>(gate + i, n - i);
    StoreUpTo(y + i, weight * simd::Activate(kind, g) * LoadUpTo<V>(up + i, n - i), n - i);
  }
}

// *dweight = sum of dy * activation(gate) * up.
ATOLL_KERNEL(WeightedGatedBackwardRun,
             (Activation kind, const float* gate, const float* up, float weight, const float* dy,
              float* dgate, float* dup, float* dweight, int64_t n),
             (kind, gate, up, weight, dy, dgate, dup, dweight, n)) {
  V dot{};
  for (int64_t i = 0; i < n; i += kLanes) {
    const V g = LoadUpTo<V>(gate + i, n - i), u = LoadUpTo<V>(up + i, n - i);
    const V d = LoadUpTo<V>(dy + i, n - i);  // 0 behind the end
    const V activated = simd::Activate(kind, g);
    dot += d * activated * u;
    StoreUpTo(dgate + i, weight * d * u * simd::ActivateDerivative(kind, g), n - i);
    StoreUpTo(dup + i, weight * d * activated, n - i);
  }
  *dweight = simd::Sum(dot);
}

// A part of a group's work.
struct GroupBlock {
  int64_t group, begin, end;
};

// Cuts what each group has, count(group), into blocks; groups without rows have none.
template <typename Count>
std::vector<GroupBlock> CutGroups(const Tensor& group_starts, int64_t block, const Count& count) {
  std::vector<GroupBlock> blocks;
  const int32_t* starts = group_starts.as<int32_t>();
  for (int64_t g = 0; g + 1 < group_starts.cols; ++g) {
    if (starts[g] == starts[g + 1]) continue;
    const int64_t size = count(g);
    for (int64_t begin = 0; begin < size; begin += block) {
      blocks.push_back({g, begin, std::min(size, begin + block)});
    }
  }
  return blocks;
}

// Calls body(group, its rows [begin, end)) in blocks.
template <typename Body>
void ForGroupRows(ThreadPool& pool, const Tensor& group_starts, const Body& body) {
  const int32_t* starts = group_starts.as<int32_t>();
  const std::vector<GroupBlock> blocks = CutGroups(
      group_starts, kGroupRows, [&](int64_t g) { return int64_t{starts[g + 1]} - starts[g]; });
  pool.For(std::ssize(blocks), [&](int64_t i, int) {
    const GroupBlock& b = blocks[static_cast<size_t>(i)];
    body(b.group, starts[b.group] + b.begin, starts[b.group] + b.end);
  });
}

int64_t AssignmentIn(const Tensor& assignments, int64_t row) {
  return assignments.present() ? assignments.as<int32_t>()[row] : row;
}

float* FindWeight(const Tensor& weights, int64_t assignment) {
  return Pointer(weights, assignment / weights.cols, assignment % weights.cols);
}

}  // namespace

void CpuBackend::Run(Stream&, const GatherRows& op) {
  op.Check();
  ForRowBlocks(pool_, op.y.rows, op.y.cols, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const int64_t a = AssignmentIn(op.assignments, row);
      if (a >= 0) std::copy_n(Pointer(op.x, a / op.per_token), op.y.cols, Pointer(op.y, row));
    }
  });
}

void CpuBackend::Run(Stream&, const AddRows& op) {
  op.Check();
  const int64_t k = op.rows.cols;
  ForRowBlocks(pool_, op.y.rows, op.y.cols, [&](int64_t begin, int64_t end) {
    for (int64_t n = begin; n < end; ++n) {
      float* const y = Pointer(op.y, n);
      if (!op.add.present()) {
        std::fill_n(y, op.y.cols, 0.0f);
      } else if (op.add.data != op.y.data) {
        std::copy_n(Pointer(op.add, n), op.y.cols, y);
      }
      for (int64_t j = 0; j < k; ++j) {
        const int32_t row = op.rows.as<int32_t>()[n * k + j];
        if (row >= 0) AddToRun(Pointer(op.x, row), y, op.y.cols);
      }
    }
  });
}

void CpuBackend::Run(Stream&, const GroupedForward& op) {
  op.Check();
  ForGroupRows(pool_, op.group_starts, [&](int64_t g, int64_t begin, int64_t end) {
    Gemm(false, true, end - begin, op.y.cols, op.x.cols, Pointer(op.x, begin), op.x.stride,
         op.w.f32() + g * op.stride, op.w.stride, false, Pointer(op.y, begin), op.y.stride);
  });
}

void CpuBackend::Run(Stream&, const GroupedBackwardInput& op) {
  op.Check();
  ForGroupRows(pool_, op.group_starts, [&](int64_t g, int64_t begin, int64_t end) {
    Gemm(false, false, end - begin, op.dx.cols, op.dy.cols, Pointer(op.dy, begin), op.dy.stride,
         op.w.f32() + g * op.stride, op.w.stride, false, Pointer(op.dx, begin), op.dx.stride);
  });
}

void CpuBackend::Run(Stream&, const GroupedBackwardWeight& op) {
  op.Check();
  const int32_t* starts = op.group_starts.as<int32_t>();
  const std::vector<GroupBlock> blocks =
      CutGroups(op.group_starts, kGradientRows, [&](int64_t) { return op.dy.cols; });
  pool_.For(std::ssize(blocks), [&](int64_t i, int) {
    const GroupBlock& b = blocks[static_cast<size_t>(i)];
    const int64_t first = starts[b.group];
    Gemm(true, false, b.end - b.begin, op.x.cols, starts[b.group + 1] - first,
         Pointer(op.dy, first, b.begin), op.dy.stride, Pointer(op.x, first), op.x.stride,
         /*accumulate=*/true, Pointer(op.dw, b.begin) + b.group * op.stride, op.dw.stride);
  });
}

void CpuBackend::Run(Stream&, const WeightedGatedForward& op) {
  op.Check();
  ForRowBlocks(pool_, op.y.rows, op.y.cols, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const int64_t a = AssignmentIn(op.assignments, row);
      if (a < 0) continue;
      WeightedGatedRun(op.kind, Pointer(op.gate, row), Pointer(op.up, row),
                       *FindWeight(op.weights, a), Pointer(op.y, row), op.y.cols);
    }
  });
}

void CpuBackend::Run(Stream&, const WeightedGatedBackward& op) {
  op.Check();
  ForRowBlocks(pool_, op.dy.rows, op.dy.cols, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const int64_t a = AssignmentIn(op.assignments, row);
      if (a < 0) continue;
      WeightedGatedBackwardRun(op.kind, Pointer(op.gate, row), Pointer(op.up, row),
                               *FindWeight(op.weights, a), Pointer(op.dy, row),
                               Pointer(op.dgate, row), Pointer(op.dup, row),
                               FindWeight(op.dweights, a), op.dy.cols);
    }
  });
}

}  // namespace atl
