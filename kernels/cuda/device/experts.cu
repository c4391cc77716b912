// Mixtures of experts behind their router (router.cu): rows sorted by expert, and the experts'
// products, one launch for all groups, whose sizes are known on the device alone: a launch has room
// for a tile of each group that is filled in part, and blocks without a tile end at once.
//
// Bytes per element of s bytes, and FLOP per element:
//   GroupTokens 8 k G a token, from the second-level cache
//   GatherRows 2s;  AddRows (k + 1 + add)s
//   WeightedGatedForward 3s, 22;  WeightedGatedBackward 5s, 30
//   GroupedForward and its B and W: see experts_mma.cu, and product_tile.h where that takes none

#include "kernels/cuda/device/device.h"
#include "kernels/cuda/device/launchers.h"
#include "kernels/cuda/device/map.h"
#include "kernels/cuda/device/product_tile.h"

namespace atl::ATOLL_DEVICE {
namespace {

constexpr int kSortThreads = 256;

// Block g places the assignments of group g, and the last one those of no group here. Each thread
// has adjacent assignments, so that their order stays.
__global__ void __launch_bounds__(kSortThreads)
    GroupTokensKernel(const int32_t* experts, int64_t size, int first, int groups,
                      int32_t* group_starts, int32_t* assignments, int64_t room, int32_t* rows) {
  __shared__ int32_t counts[kSortThreads];
  const int g = static_cast<int>(blockIdx.x), thread = threadIdx.x;
  const int64_t each = (size + kSortThreads - 1) / kSortThreads;
  const int64_t begin = thread * each < size ? thread * each : size;
  const int64_t end = begin + each < size ? begin + each : size;
  const auto is_mine = [&](int group) {
    return g < groups ? group == g : group < 0 || group >= groups;
  };
  int before = 0, mine = 0;
  for (int64_t a = begin; a < end; ++a) {
    const int group = experts[a] - first;
    if (group >= 0 && group < g) ++before;
    if (is_mine(group)) ++mine;
  }
  counts[thread] = mine;
  before = BlockReduce(before, 0, Sum());
  if (thread == 0) group_starts[g] = before;
  if (g == groups) {
    for (int64_t a = begin; a < end; ++a) {
      if (is_mine(experts[a] - first)) rows[a] = -1;
    }
    for (int64_t row = before + thread; row < room; row += blockDim.x) assignments[row] = -1;
    return;
  }
  for (int i = 0; i < thread; ++i) before += counts[i];
  for (int64_t a = begin; a < end; ++a) {
    if (!is_mine(experts[a] - first)) continue;
    rows[a] = before;
    assignments[before++] = static_cast<int32_t>(a);
  }
}

// ---- Rows ----

template <typename T>
struct GatherRowsMap {
  View<T> x, y;
  const int32_t* assignments;
  int per_token;
  template <int N>
  __device__ void At(int64_t row, int64_t col) const {
    const int assignment = assignments[row];
    if (assignment < 0) return;
    Store(y.Row(row) + col, Load<N>(x.Row(assignment / per_token) + col));
  }
};

template <typename T>
struct AddRowsMap {
  View<T> x, add, y;
  const int32_t* rows;
  int k;
  template <int N>
  __device__ void At(int64_t n, int64_t col) const {
    Pack<float, N> sum = LoadOrZero<N>(add.data, n * add.stride + col);
    for (int j = 0; j < k; ++j) {
      const int row = rows[n * k + j];
      if (row < 0) continue;
      const Pack<float, N> v = Load<N>(x.Row(row) + col);
#pragma unroll
      for (int i = 0; i < N; ++i) sum.v[i] += v.v[i];
    }
    Store(y.Row(n) + col, sum);
  }
};

// Weights by row; -1: the row has none.
struct RowWeights {
  View<float> weights;
  const int32_t* assignments;  // null: rows are assignments
  int k;
  __device__ int64_t Assignment(int64_t row) const {
    return assignments == nullptr ? row : assignments[row];
  }
  __device__ float* At(const View<float>& of, int64_t assignment) const {
    return of.Row(assignment / k) + assignment % k;
  }
};

template <typename T, Activation kKind>
struct WeightedGatedMap {
  View<T> gate, up, y;
  RowWeights row_weights;
  template <int N>
  __device__ void At(int64_t row, int64_t col) const {
    const int64_t assignment = row_weights.Assignment(row);
    if (assignment < 0) return;
    const float weight = *row_weights.At(row_weights.weights, assignment);
    Pack<float, N> g = Load<N>(gate.Row(row) + col);
    const Pack<float, N> u = Load<N>(up.Row(row) + col);
#pragma unroll
    for (int i = 0; i < N; ++i) g.v[i] = weight * Activate<kKind, T>(g.v[i]) * u.v[i];
    Store(y.Row(row) + col, g);
  }
};

template <typename T, Activation kKind, int N>
__global__ void __launch_bounds__(kMapThreads)
    WeightedGatedBackwardKernel(View<T> gate, View<T> up, View<T> dy, View<T> dgate, View<T> dup,
                                const RowWeights row_weights, View<float> dweights, int cols) {
  const int64_t row = blockIdx.x, assignment = row_weights.Assignment(row);
  if (assignment < 0) return;
  const float weight = *row_weights.At(row_weights.weights, assignment);
  float dot = 0.0f;
  for (int c = threadIdx.x * N; c < cols; c += blockDim.x * N) {
    Pack<float, N> g = Load<N>(gate.Row(row) + c), u = Load<N>(up.Row(row) + c);
    const Pack<float, N> d = Load<N>(dy.Row(row) + c);
#pragma unroll
    for (int i = 0; i < N; ++i) {
      const float x = g.v[i], activated = Activate<kKind, T>(x);
      dot += d.v[i] * activated * u.v[i];
      g.v[i] = weight * d.v[i] * u.v[i] * ActivateDerivative<kKind, T>(x);
      u.v[i] = weight * d.v[i] * activated;
    }
    Store(dgate.Row(row) + c, g);
    Store(dup.Row(row) + c, u);
  }
  dot = BlockReduce(dot, 0.0f, Sum());
  if (threadIdx.x == 0) *row_weights.At(dweights, assignment) = dot;
}

// ---- Products ----

template <typename T>
__device__ inline Strided<T> Further(Strided<T> x, int64_t elements) {
  x.data += elements;
  return x;
}

// Block (x, y) is the x-th tile of rows, of all groups in order, and the y-th of columns.
template <typename T>
__global__ void __launch_bounds__(kTileThreads)
    GroupedRowsKernel(Strided<T> a, Strided<T> b, int64_t stride, const int32_t* group_starts,
                      int groups, View<T> d, int64_t cols, int64_t depth) {
  int group = 0;
  int64_t row = 0;
  if (!FindTile(group_starts, groups, blockIdx.x, &group, &row)) return;
  const int64_t first = group_starts[group], rows = group_starts[group + 1] - first;
  MultiplyTile(Further(a, first * a.of_row), Further(b, stride * group), View<T>{},
               View<T>{d.Row(first), d.stride}, row, int64_t{blockIdx.y} * kTile, rows, cols,
               depth);
}

// Block (x, y, z) is tile (y, x) of group z's matrix.
template <typename T>
__global__ void __launch_bounds__(kTileThreads)
    GroupedWeightKernel(Strided<T> dy, Strided<T> x, const int32_t* group_starts, View<float> dw,
                        int64_t stride, int64_t out, int64_t in) {
  const int64_t first = group_starts[blockIdx.z], depth = group_starts[blockIdx.z + 1] - first;
  if (depth == 0) return;
  const View<float> of_group{dw.data + stride * blockIdx.z, dw.stride};
  MultiplyTile(Further(dy, first * dy.of_col), Further(x, first * x.of_row), of_group, of_group,
               int64_t{blockIdx.y} * kTile, int64_t{blockIdx.x} * kTile, out, in, depth);
}

// ---- Launchers ----

int CountGroups(const Tensor& group_starts) { return static_cast<int>(group_starts.cols - 1); }

// Tiles of all groups' rows, of which each group may fill one only in part.
dim3 GroupedGrid(int64_t rows, int64_t cols, const Tensor& group_starts) {
  const int64_t down = CeilDiv(rows, kTile) + CountGroups(group_starts);
  return dim3(static_cast<unsigned>(down), static_cast<unsigned>(CeilDiv(cols, kTile)));
}

template <typename Op>
RowWeights MakeRowWeights(const Op& op) {
  return {MakeView<float>(op.weights),
          op.assignments.present() ? op.assignments.template as<int32_t>() : nullptr,
          static_cast<int>(op.weights.cols)};
}

}  // namespace

void Enqueue(const Queue& queue, const GroupTokens& op) {
  const int64_t groups = op.group_starts.cols - 1;
  Launch(queue, dim3(static_cast<unsigned>(groups + 1)), dim3(kSortThreads), 0, "GroupTokens",
         GroupTokensKernel, op.experts.as<int32_t>(), op.experts.size(), static_cast<int>(op.first),
         static_cast<int>(groups), op.group_starts.as<int32_t>(), op.assignments.as<int32_t>(),
         op.assignments.cols, op.rows.as<int32_t>());
}

void Enqueue(const Queue& queue, const GatherRows& op) {
  ForType(op.y.dtype, [&]<typename T>() {
    const GatherRowsMap<T> map{MakeView<T>(op.x), MakeView<T>(op.y), op.assignments.as<int32_t>(),
                               static_cast<int>(op.per_token)};
    MapRows<kWide<T>>(queue, "GatherRows", map, {op.x, op.y}, op.y.rows, op.y.cols);
  });
}

void Enqueue(const Queue& queue, const AddRows& op) {
  ForType(op.y.dtype, [&]<typename T>() {
    const AddRowsMap<T> map{MakeView<T>(op.x), MakeView<T>(op.add), MakeView<T>(op.y),
                            op.rows.as<int32_t>(), static_cast<int>(op.rows.cols)};
    MapRows<kWide<T>>(queue, "AddRows", map, {op.x, op.add, op.y}, op.y.rows, op.y.cols);
  });
}

void Enqueue(const Queue& queue, const WeightedGatedForward& op) {
  ForType(op.y.dtype, [&]<typename T>() {
    ForActivation(op.kind, [&]<Activation kKind>() {
      const WeightedGatedMap<T, kKind> map{MakeView<T>(op.gate), MakeView<T>(op.up),
                                           MakeView<T>(op.y), MakeRowWeights(op)};
      MapRows<kWide<T>>(queue, "WeightedGatedForward", map, {op.gate, op.up, op.y}, op.y.rows,
                        op.y.cols);
    });
  });
}

void Enqueue(const Queue& queue, const WeightedGatedBackward& op) {
  ATOLL_CHECK(op.dy.rows < INT32_MAX && op.dy.cols < INT32_MAX);
  ForType(op.dy.dtype, [&]<typename T>() {
    ForActivation(op.kind, [&]<Activation kKind>() {
      const auto launch = [&]<int N>() {
        Launch(queue, dim3(static_cast<unsigned>(op.dy.rows)), dim3(kMapThreads), 0,
               "WeightedGatedBackward", WeightedGatedBackwardKernel<T, kKind, N>,
               MakeView<T>(op.gate), MakeView<T>(op.up), MakeView<T>(op.dy), MakeView<T>(op.dgate),
               MakeView<T>(op.dup), MakeRowWeights(op), MakeView<float>(op.dweights),
               static_cast<int>(op.dy.cols));
      };
      ForPack<kWide<T>>({op.gate, op.up, op.dy, op.dgate, op.dup}, op.dy.cols, launch);
    });
  });
}

void Enqueue(const Queue& queue, const GroupedForward& op) {
  if (EnqueueOnTensorCores(queue, op)) return;
  ForType(op.y.dtype, [&]<typename T>() {
    Launch(queue, GroupedGrid(op.y.rows, op.y.cols, op.group_starts), dim3(kTileThreads), 0,
           "GroupedForward", GroupedRowsKernel<T>, MakeStrided<T>(op.x, false),
           MakeStrided<T>(op.w, true), op.stride, op.group_starts.as<int32_t>(),
           CountGroups(op.group_starts), MakeView<T>(op.y), op.y.cols, op.x.cols);
  });
}

void Enqueue(const Queue& queue, const GroupedBackwardInput& op) {
  if (EnqueueOnTensorCores(queue, op)) return;
  ForType(op.dx.dtype, [&]<typename T>() {
    Launch(queue, GroupedGrid(op.dx.rows, op.dx.cols, op.group_starts), dim3(kTileThreads), 0,
           "GroupedBackwardInput", GroupedRowsKernel<T>, MakeStrided<T>(op.dy, false),
           MakeStrided<T>(op.w, false), op.stride, op.group_starts.as<int32_t>(),
           CountGroups(op.group_starts), MakeView<T>(op.dx), op.dx.cols, op.dy.cols);
  });
}

void Enqueue(const Queue& queue, const GroupedBackwardWeight& op) {
  if (EnqueueOnTensorCores(queue, op)) return;
  ForType(op.x.dtype, [&]<typename T>() {
    const dim3 grid(static_cast<unsigned>(CeilDiv(op.dw.cols, kTile)),
                    static_cast<unsigned>(CeilDiv(op.dw.rows, kTile)),
                    static_cast<unsigned>(CountGroups(op.group_starts)));
    Launch(queue, grid, dim3(kTileThreads), 0, "GroupedBackwardWeight", GroupedWeightKernel<T>,
           MakeStrided<T>(op.dy, true), MakeStrided<T>(op.x, false), op.group_starts.as<int32_t>(),
           MakeView<float>(op.dw), op.stride, op.dw.rows, op.dw.cols);
  });
}

}  // namespace atl::ATOLL_DEVICE
