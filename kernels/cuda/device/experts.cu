// Mixtures of experts: a warp for each token of a router; rows sorted by expert; and the experts'
// products, one launch for all groups, whose sizes are known on the device alone: a launch has room
// for a tile of each group that is filled in part, and blocks without a tile end at once.
//
// Bytes per element of s bytes, and FLOP per element:
//   RouteForward s E a token, about 20 E + 2 k E;  RouteBackward 2 s E, about (30 + k) E
//   CountExperts 4 k E a token;  GroupTokens 8 k G a token, both from the second-level cache
//   GatherRows 2s;  AddRows (k + 1 + add)s
//   WeightedGatedForward 3s, 22;  WeightedGatedBackward 5s, 30
//   GroupedForward and its B and W: see product_tile.h

#include "kernels/cuda/device/device.h"
#include "kernels/cuda/device/launchers.h"
#include "kernels/cuda/device/map.h"
#include "kernels/cuda/device/product_tile.h"

namespace atl::ATOLL_DEVICE {
namespace {

constexpr int kRouterWarps = 4;
constexpr int kRouterThreads = kRouterWarps * kWarp;
constexpr int kSortThreads = 256;

struct Min {
  __device__ int operator()(int a, int b) const { return a < b ? a : b; }
};

template <typename T>
struct RouterArgs {
  View<T> logits;
  const float* bias;  // null: none
  int rows, experts, k;
  bool softmax, normalise;
  float scale;
};

// A token's scores; the same in all lanes of its warp. Divisions are quick ones: those by rule
// call a function, around which registers are spilled.
template <typename T>
struct TokenScores {
  const T* logits;
  float largest, sum;  // of exp(logit - largest)
  bool softmax;

  __device__ static TokenScores Read(const RouterArgs<T>& a, int row, int lane) {
    const T* logits = a.logits.Row(row);
    float largest = -INFINITY, sum = 0.0f;
    for (int e = lane; e < a.experts; e += kWarp) largest = fmaxf(largest, ToFloat(logits[e]));
    largest = GroupReduce<kWarp>(largest, Max());
    for (int e = lane; e < a.experts; e += kWarp) sum += expf(ToFloat(logits[e]) - largest);
    return {logits, largest, GroupReduce<kWarp>(sum, Sum()), a.softmax};
  }
  __device__ float Softmax(int e) const {
    return __fdividef(expf(ToFloat(logits[e]) - largest), sum);
  }
  __device__ float At(int e) const {
    return softmax ? Softmax(e) : __fdividef(1.0f, 1.0f + expf(-ToFloat(logits[e])));
  }
  __device__ float LogSum() const { return largest + logf(sum); }
  // A sum of scores to divide by: see RouterRule.
  __device__ float Divisor(float sum) const { return softmax ? sum : sum + kRouterEpsilon; }
};

template <typename T>
__global__ void __launch_bounds__(kRouterThreads)
    RouteForwardKernel(const RouterArgs<T> a, int32_t* experts, View<float> weights) {
  const int row = static_cast<int>(blockIdx.x) * kRouterWarps + threadIdx.x / kWarp;
  const int lane = threadIdx.x % kWarp;
  if (row >= a.rows) return;
  const TokenScores<T> scores = TokenScores<T>::Read(a, row, lane);
  int32_t* const chosen = experts + int64_t{row} * a.k;
  float sum = 0.0f, last = INFINITY;
  int last_expert = -1;
  // The next in order of preference is the best of those behind the last one.
  for (int j = 0; j < a.k; ++j) {
    float best = -INFINITY;
    int expert = INT32_MAX;
    for (int e = lane; e < a.experts; e += kWarp) {
      // A logit that is not a number comes last.
      const float preference = fmaxf(
          -INFINITY, a.bias == nullptr ? ToFloat(scores.logits[e]) : scores.At(e) + a.bias[e]);
      const bool left = preference < last || (preference == last && e > last_expert);
      if (left && (preference > best || expert == INT32_MAX)) best = preference, expert = e;
    }
    const float largest = GroupReduce<kWarp>(best, Max());
    expert = GroupReduce<kWarp>(best == largest ? expert : INT32_MAX, Min());
    last = largest;
    last_expert = expert;
    sum += scores.At(expert);
    if (lane == 0) chosen[j] = expert;
  }
  if (lane != 0) return;
  const float factor = a.normalise ? __fdividef(a.scale, scores.Divisor(sum)) : a.scale;
  for (int j = 0; j < a.k; ++j) weights.Row(row)[j] = scores.At(chosen[j]) * factor;
}

struct LossArgs {
  const int32_t* counts;  // null: no losses
  const int32_t* starts;  // null: no sequence has padding
  const float* share;
  int seq_len;
  float balance, z;
  View<float> terms;
};

// Says what IsPadding (expert_ops.h) says.
__device__ bool IsPaddingHere(const int32_t* starts, int64_t n, int seq_len) {
  const int at = static_cast<int>(n % seq_len);
  if (starts == nullptr || at == 0 || starts[n] != at) return false;
  return at + 1 < seq_len ? starts[n + 1] == at + 1 : starts[n - 1] == at - 1;
}

template <typename T>
__global__ void __launch_bounds__(kRouterThreads)
    RouteBackwardKernel(const RouterArgs<T> a, const int32_t* experts, View<float> dweights,
                        View<T> dlogits, const LossArgs l) {
  const int row = static_cast<int>(blockIdx.x) * kRouterWarps + threadIdx.x / kWarp;
  const int lane = threadIdx.x % kWarp;
  if (row >= a.rows) return;
  const TokenScores<T> scores = TokenScores<T>::Read(a, row, lane);
  const int32_t* const chosen = experts + int64_t{row} * a.k;
  const float* const dweight = dweights.Row(row);
  float sum = 1.0f, mean = 0.0f;
  if (a.normalise) {
    sum = 0.0f;
    for (int j = 0; j < a.k; ++j) {
      sum += scores.At(chosen[j]);
      mean += dweight[j] * scores.At(chosen[j]);
    }
    sum = scores.Divisor(sum);
    mean = __fdividef(mean, sum);
  }
  const int32_t* counts = nullptr;
  float loss = 0.0f, all = 1.0f;  // the token's part of the balance loss; the sum of its scores
  float unit = 0.0f, of_balance = 0.0f, of_z = 0.0f, tokens = 1.0f;
  if (l.counts != nullptr && !IsPaddingHere(l.starts, row, l.seq_len)) {
    counts = l.counts + int64_t{row / l.seq_len} * a.experts;
    float total = 0.0f;
    int assigned = 0;
    for (int e = lane; e < a.experts; e += kWarp) {
      total += scores.At(e);
      loss += counts[e] * scores.At(e);
      assigned += counts[e];
    }
    all = scores.Divisor(GroupReduce<kWarp>(total, Sum()));
    tokens = static_cast<float>(GroupReduce<kWarp>(assigned, Sum()) / a.k);
    unit = __fdividef(static_cast<float>(a.experts), tokens * tokens);
    loss = __fdividef(unit * GroupReduce<kWarp>(loss, Sum()), all);
    of_balance = l.balance * *l.share;
    of_z = __fdividef(l.z * *l.share, tokens);
  }
  const auto dscore = [&](int e) {
    float d = 0.0f;
    for (int j = 0; j < a.k; ++j) {
      if (chosen[j] == e) d = __fdividef(a.scale * (dweight[j] - mean), sum);
    }
    return counts == nullptr ? d : d + __fdividef(of_balance * (unit * counts[e] - loss), all);
  };
  float dot = 0.0f;
  for (int e = lane; e < a.experts; e += kWarp) dot += dscore(e) * scores.At(e);
  dot = GroupReduce<kWarp>(dot, Sum());
  const float log_sum = scores.LogSum();
  for (int e = lane; e < a.experts; e += kWarp) {
    const float s = scores.At(e), d = dscore(e);
    float dlogit = a.softmax ? s * (d - dot) : d * s * (1.0f - s);
    if (counts != nullptr) dlogit += 2.0f * of_z * log_sum * scores.Softmax(e);
    Put(dlogits.Row(row) + e, dlogit);
  }
  if (l.counts == nullptr || lane != 0) return;
  l.terms.Row(0)[row] = loss;
  l.terms.Row(1)[row] = counts == nullptr ? 0.0f : __fdividef(log_sum * log_sum, tokens);
}

// totals[i] += share * sum of row i, and behind both the counts of each expert.
__global__ void __launch_bounds__(kSortThreads)
    RouterTotalsKernel(View<float> terms, int64_t rows, const float* share, const int32_t* counts,
                       int64_t sequences, int experts, float* totals) {
  for (int i = 0; i < 2; ++i) {
    double sum = 0;
    for (int64_t row = threadIdx.x; row < rows; row += blockDim.x) sum += terms.Row(i)[row];
    sum = BlockReduce(sum, 0.0, Sum());
    if (threadIdx.x == 0) totals[i] += static_cast<float>(sum * *share);
  }
  for (int e = threadIdx.x; e < experts; e += blockDim.x) {
    int64_t count = 0;
    for (int64_t s = 0; s < sequences; ++s) count += counts[s * experts + e];
    totals[2 + e] += static_cast<float>(count);
  }
}

// Block (x, y): expert x in sequences y, y + gridDim.y, ...
__global__ void __launch_bounds__(kSortThreads)
    CountExpertsKernel(const int32_t* experts, int64_t each, int k, const int32_t* starts,
                       int32_t* counts, int64_t sequences) {
  const int expert = static_cast<int>(blockIdx.x);
  for (int64_t s = blockIdx.y; s < sequences; s += gridDim.y) {
    const int32_t* const from = experts + each * s;
    int count = 0;
    for (int64_t a = threadIdx.x; a < each; a += blockDim.x) {
      if (from[a] != expert) continue;
      const int64_t token = (each * s + a) / k;
      count += IsPaddingHere(starts, token, static_cast<int>(each / k)) ? 0 : 1;
    }
    count = BlockReduce(count, 0, Sum());
    if (threadIdx.x == 0) counts[s * gridDim.x + expert] = count;
  }
}

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

template <typename T, typename Op>
RouterArgs<T> MakeRouterArgs(const Op& op, const float* bias) {
  ATOLL_CHECK(op.logits.rows < INT32_MAX / kRouterWarps);
  return {MakeView<T>(op.logits),
          bias,
          static_cast<int>(op.logits.rows),
          static_cast<int>(op.logits.cols),
          static_cast<int>(op.experts.cols),
          op.rule.score == RouterScore::kSoftmax,
          op.rule.normalise,
          op.rule.scale};
}

dim3 RouterGrid(const Tensor& logits) {
  return dim3(static_cast<unsigned>(CeilDiv(logits.rows, kRouterWarps)));
}

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

const int32_t* StartsOrNull(const Tensor& starts) {
  return starts.present() ? starts.as<int32_t>() : nullptr;
}

}  // namespace

void Enqueue(const Queue& queue, const RouteForward& op) {
  ForType(op.logits.dtype, [&]<typename T>() {
    Launch(queue, RouterGrid(op.logits), dim3(kRouterThreads), 0, "RouteForward",
           RouteForwardKernel<T>, MakeRouterArgs<T>(op, static_cast<const float*>(op.bias.data)),
           op.experts.as<int32_t>(), MakeView<float>(op.weights));
  });
}

void Enqueue(const Queue& queue, const RouteBackward& op) {
  const RouterLosses& l = op.losses;
  LossArgs losses{nullptr, nullptr, nullptr, 1, 0.0f, 0.0f, {}};
  if (l.present()) {
    losses = {l.counts.as<int32_t>(),
              StartsOrNull(l.starts),
              l.share.f32(),
              static_cast<int>(op.logits.rows / l.counts.rows),
              l.balance,
              l.z,
              MakeView<float>(l.terms)};
  }
  ForType(op.logits.dtype, [&]<typename T>() {
    Launch(queue, RouterGrid(op.logits), dim3(kRouterThreads), 0, "RouteBackward",
           RouteBackwardKernel<T>, MakeRouterArgs<T>(op, nullptr), op.experts.as<int32_t>(),
           MakeView<float>(op.dweights), MakeView<T>(op.dlogits), losses);
  });
  if (!l.present()) return;
  Launch(queue, dim3(1), dim3(kSortThreads), 0, "RouterTotals", RouterTotalsKernel,
         MakeView<float>(l.terms), op.logits.rows, l.share.f32(), l.counts.as<int32_t>(),
         l.counts.rows, static_cast<int>(op.logits.cols), l.totals.f32());
}

void Enqueue(const Queue& queue, const CountExperts& op) {
  const int64_t sequences = op.counts.rows < kRowsOfGrid ? op.counts.rows : kRowsOfGrid;
  Launch(queue, dim3(static_cast<unsigned>(op.counts.cols), static_cast<unsigned>(sequences)),
         dim3(kSortThreads), 0, "CountExperts", CountExpertsKernel, op.experts.as<int32_t>(),
         op.experts.size() / op.counts.rows, static_cast<int>(op.experts.cols),
         StartsOrNull(op.starts), op.counts.as<int32_t>(), op.counts.rows);
}

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
      if (PackSize({op.gate, op.up, op.dy, op.dgate, op.dup}, op.dy.cols, kWide<T>) > 1) {
        launch.template operator()<kWide<T>>();
      } else {
        launch.template operator()<1>();
      }
    });
  });
}

void Enqueue(const Queue& queue, const GroupedForward& op) {
  ForType(op.y.dtype, [&]<typename T>() {
    Launch(queue, GroupedGrid(op.y.rows, op.y.cols, op.group_starts), dim3(kTileThreads), 0,
           "GroupedForward", GroupedRowsKernel<T>, MakeStrided<T>(op.x, false),
           MakeStrided<T>(op.w, true), op.stride, op.group_starts.as<int32_t>(),
           CountGroups(op.group_starts), MakeView<T>(op.y), op.y.cols, op.x.cols);
  });
}

void Enqueue(const Queue& queue, const GroupedBackwardInput& op) {
  ForType(op.dx.dtype, [&]<typename T>() {
    Launch(queue, GroupedGrid(op.dx.rows, op.dx.cols, op.group_starts), dim3(kTileThreads), 0,
           "GroupedBackwardInput", GroupedRowsKernel<T>, MakeStrided<T>(op.dy, false),
           MakeStrided<T>(op.w, false), op.stride, op.group_starts.as<int32_t>(),
           CountGroups(op.group_starts), MakeView<T>(op.dx), op.dx.cols, op.dy.cols);
  });
}

void Enqueue(const Queue& queue, const GroupedBackwardWeight& op) {
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
