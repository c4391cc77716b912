// Norms and the loss: one block per row, which it reads from memory once; a second look at the row
// finds it in the first-level cache (or, for the logits of a large vocabulary, in shared memory
// where two such rows fit into a multiprocessor's, else in the second-level cache).
//
// Bytes per element of s bytes, with C or V elements a row, and FLOP per element:
//   NormForward 2s, 4 (LayerNorm 8);  NormBackwardInput (3 + add)s, 8 (LayerNorm 12)
//   CrossEntropy s (loss only) or 2s, about 40 (two exponentials)
//   CrossEntropyMax s, 1;  CrossEntropySums s, about 20

#include "kernels/cuda/device/device.h"
#include "kernels/cuda/device/launchers.h"

namespace atl::ATOLL_DEVICE {
namespace {

constexpr int kThreadsMax = 256;
// The loss looks at a row twice. Rows of a large vocabulary are too long for the first-level cache;
// with 256 threads a row, so many rows would be under way that they are too much for the
// second-level one as well (8 blocks of 132 processors with 100 KB each). 1,024 threads are a
// quarter of the rows.
constexpr int kThreadsOfLongRow = 1024;
constexpr int64_t kLongRow = 16384;
// Two blocks a multiprocessor that keep a row each in shared memory: of 228 KB, where there is as
// much (compute capability 9.0 and later).
constexpr int64_t kKeptRowBytesMax = 112 * 1024;

// Threads of a row's block: about two packs each, for enough loads in flight.
dim3 ThreadsFor(int64_t packs) {
  const int64_t threads = CeilDiv(CeilDiv(packs, 2), kWarp) * kWarp;
  if (threads == 0) return dim3(kWarp);
  return dim3(static_cast<unsigned>(threads < kThreadsMax ? threads : kThreadsMax));
}

__device__ inline float BlockSum(float x) { return BlockReduce(x, 0.0f, Sum()); }

// Block (x, y): part y of row x.
template <typename T, int N>
__global__ void __launch_bounds__(kThreadsMax)
    RmsForwardKernel(View<T> x, const T* w, View<T> y, float* rstd, int cols, float eps) {
  const int64_t row = blockIdx.x, first = int64_t{blockIdx.y} * cols;
  const T* from = x.Row(row) + first;
  float squares = 0.0f;
  for (int c = threadIdx.x * N; c < cols; c += blockDim.x * N) {
    const Pack<float, N> v = Load<N>(from + c);
#pragma unroll
    for (int i = 0; i < N; ++i) squares += v.v[i] * v.v[i];
  }
  const float scale = 1.0f / sqrtf(BlockSum(squares) / cols + eps);
  if (threadIdx.x == 0) rstd[int64_t{blockIdx.y} * gridDim.x + row] = scale;
  T* const to = y.Row(row) + first;
  for (int c = threadIdx.x * N; c < cols; c += blockDim.x * N) {
    Pack<float, N> v = Load<N>(from + c);
    const Pack<float, N> weight = Load<N>(w + c);
#pragma unroll
    for (int i = 0; i < N; ++i) v.v[i] *= scale * weight.v[i];
    Store(to + c, v);
  }
}

template <typename T, int N>
__global__ void __launch_bounds__(kThreadsMax)
    LayerForwardKernel(View<T> x, const T* w, const T* b, View<T> y, float* mean_out, float* rstd,
                       int cols, float eps) {
  const int64_t row = blockIdx.x;
  const T* from = x.Row(row);
  float sum = 0.0f;
  for (int c = threadIdx.x * N; c < cols; c += blockDim.x * N) {
    const Pack<float, N> v = Load<N>(from + c);
#pragma unroll
    for (int i = 0; i < N; ++i) sum += v.v[i];
  }
  const float mean = BlockSum(sum) / cols;
  float squares = 0.0f;
  for (int c = threadIdx.x * N; c < cols; c += blockDim.x * N) {
    const Pack<float, N> v = Load<N>(from + c);
#pragma unroll
    for (int i = 0; i < N; ++i) squares += (v.v[i] - mean) * (v.v[i] - mean);
  }
  const float scale = 1.0f / sqrtf(BlockSum(squares) / cols + eps);
  if (threadIdx.x == 0) {
    mean_out[row] = mean;
    rstd[row] = scale;
  }
  for (int c = threadIdx.x * N; c < cols; c += blockDim.x * N) {
    Pack<float, N> v = Load<N>(from + c);
    const Pack<float, N> weight = Load<N>(w + c), bias = Load<N>(b + c);
#pragma unroll
    for (int i = 0; i < N; ++i) v.v[i] = (v.v[i] - mean) * scale * weight.v[i] + bias.v[i];
    Store(y.Row(row) + c, v);
  }
}

// With xh = (x - mean) * rstd and g = dy * w: dx = rstd * (g - mean(g) - xh * mean(g * xh)) + add.
// RMSNorm has no mean (null), neither of x nor of g. Block (x, y): part y of row x.
template <typename T, int N, bool kCentred>
__global__ void __launch_bounds__(kThreadsMax)
    NormBackwardKernel(View<T> dy, View<T> x, const T* w, const float* mean, const float* rstd,
                       View<T> add, View<T> dx, int cols) {
  const int64_t row = blockIdx.x, first = int64_t{blockIdx.y} * cols;
  const T* const from = x.Row(row) + first;
  const T* const gradient = dy.Row(row) + first;
  const float scale = rstd[int64_t{blockIdx.y} * gridDim.x + row];
  const float centre = kCentred ? mean[row] : 0.0f;
  float sum = 0.0f, dot = 0.0f;
  for (int c = threadIdx.x * N; c < cols; c += blockDim.x * N) {
    const Pack<float, N> d = Load<N>(gradient + c), v = Load<N>(from + c);
    const Pack<float, N> weight = Load<N>(w + c);
#pragma unroll
    for (int i = 0; i < N; ++i) {
      const float g = d.v[i] * weight.v[i];
      sum += g;
      dot += g * (v.v[i] - centre) * scale;
    }
  }
  const float mean_g = kCentred ? BlockSum(sum) / cols : 0.0f;
  const float mean_dot = BlockSum(dot) / cols;
  T* const to = dx.Row(row) + first;
  for (int c = threadIdx.x * N; c < cols; c += blockDim.x * N) {
    Pack<float, N> d = Load<N>(gradient + c);
    const Pack<float, N> v = Load<N>(from + c), weight = Load<N>(w + c);
    const Pack<float, N> a = LoadOrZero<N>(add.data, row * add.stride + first + c);
#pragma unroll
    for (int i = 0; i < N; ++i) {
      const float normal = (v.v[i] - centre) * scale;
      d.v[i] = scale * (d.v[i] * weight.v[i] - mean_g - normal * mean_dot) + a.v[i];
    }
    Store(to + c, d);
  }
}

// ---- Loss ----

// Calls f(column, pack) for a row that may begin anywhere: elements before the first 16-byte
// aligned address and behind the last one on their own. `apart`: not even that, because another row
// that f writes to is aligned otherwise.
template <typename T, typename Function>
__device__ inline void ForRow(const T* row, int cols, bool apart, const Function& f) {
  constexpr int kN = 16 / sizeof(T);
  const int odd = static_cast<int>(reinterpret_cast<uintptr_t>(row) % 16 / sizeof(T));
  int head = odd == 0 ? 0 : kN - odd;
  if (apart || head > cols) head = cols;
  const int packs = (cols - head) / kN, tail = head + packs * kN;
  for (int c = threadIdx.x; c < head; c += blockDim.x) f(c, Load<1>(row + c));
  for (int p = threadIdx.x; p < packs; p += blockDim.x) {
    f(head + p * kN, Load<kN>(row + head + p * kN));
  }
  for (int c = tail + threadIdx.x; c < cols; c += blockDim.x) f(c, Load<1>(row + c));
}

template <typename T>
struct OnlineSoftmax {
  float largest = -INFINITY, sum = 0.0f;
  template <int N>
  __device__ void Add(const Pack<float, N>& x) {
    float top = largest;
#pragma unroll
    for (int i = 0; i < N; ++i) top = fmaxf(top, x.v[i]);
    if (top > largest) {
      sum *= Exp<T>(largest - top);
      largest = top;
    }
#pragma unroll
    for (int i = 0; i < N; ++i) sum += ExpOfDifference<T>(x.v[i], largest);
  }
};

// Numbers that a row's gradient and loss are made of.
struct RowSoftmax {
  float largest, sum;
  float target;  // the target's logit - largest
};

// Computes the numbers of the whole row, which it copies to `kept` (unless null); they are the same
// in all threads but for `target`, which thread 0 has.
template <typename T>
__device__ inline RowSoftmax ComputeRowSoftmax(const T* row, int cols, bool apart, int target,
                                               T* kept) {
  OnlineSoftmax<T> softmax;
  ForRow(row, cols, apart, [&](int col, const auto& pack) {
    if (kept != nullptr) Store(kept + col, pack);
    softmax.Add(pack);
  });
  const float largest = BlockReduce(softmax.largest, -INFINITY, Max());
  const float scaled = softmax.sum == 0.0f ? 0.0f : softmax.sum * expf(softmax.largest - largest);
  const float sum = BlockSum(scaled);
  const bool here = threadIdx.x == 0 && target >= 0 && target < cols;
  return {largest, sum, here ? ToFloat(row[target]) - largest : 0.0f};
}

template <typename T>
struct LossOperands {
  View<T> logits, dlogits;
  const int32_t* targets;
  const float* max;  // null: of the whole vocabulary, which is then here
  View<float> sums;
  int64_t first_class;
  int cols;
  float grad_scale, smoothing;
  int32_t ignore_index;
};

// kKeep: the second look at the row is in shared memory.
template <typename T, bool kKeep>
__global__ void __launch_bounds__(kThreadsOfLongRow, 2)
    CrossEntropyKernel(const LossOperands<T> a, float2* losses) {
  ATOLL_DYNAMIC_SHARED(T, shared);
  const int64_t row = blockIdx.x;
  const T* from = a.logits.Row(row);
  T* to = a.dlogits.data == nullptr ? nullptr : a.dlogits.Row(row);
  const bool ignored = a.targets[row] == a.ignore_index;
  const int target = ignored ? -1 : static_cast<int>(a.targets[row] - a.first_class);
  const bool apart = to != nullptr && (reinterpret_cast<uintptr_t>(to) % 16 !=
                                       reinterpret_cast<uintptr_t>(from) % 16);
  // Aligned as the row is.
  T* kept = kKeep ? shared + reinterpret_cast<uintptr_t>(from) % 16 / sizeof(T) : nullptr;
  const RowSoftmax softmax = a.max == nullptr
                                 ? ComputeRowSoftmax(from, a.cols, apart, target, kept)
                                 : RowSoftmax{a.max[row], a.sums.Row(0)[row], a.sums.Row(1)[row]};
  const float log_sum = logf(softmax.sum);
  float loss = log_sum - softmax.target;
  if (a.smoothing > 0.0f) {  // of all classes: the mean of log_sum - (logit - largest)
    float below = 0.0f;
    ForRow(from, a.cols, apart, [&](int, const auto& pack) {
      constexpr int kN = sizeof(pack) / sizeof(float);
#pragma unroll
      for (int i = 0; i < kN; ++i) below += softmax.largest - pack.v[i];
    });
    const float mean = log_sum + BlockSum(below) / static_cast<float>(a.cols);
    loss += a.smoothing * (mean - loss);
  }
  if (threadIdx.x == 0) losses[row] = {ignored ? 0.0f : loss, ignored ? 0.0f : 1.0f};
  if (to == nullptr) return;
  __syncthreads();  // the target's logit has been read: gradients may take the logits' place
  const float factor = ignored ? 0.0f : a.grad_scale / softmax.sum;
  const float hit = ignored ? 0.0f : a.grad_scale * (1.0f - a.smoothing);
  const float share = ignored ? 0.0f : a.grad_scale * a.smoothing / static_cast<float>(a.cols);
  ForRow(kKeep ? kept : from, a.cols, apart, [&](int col, auto pack) {
    constexpr int kN = sizeof(pack) / sizeof(float);
#pragma unroll
    for (int i = 0; i < kN; ++i) {
      pack.v[i] = factor * ExpOfDifference<T>(pack.v[i], softmax.largest) - share;
    }
    if (target >= col && target < col + kN) {
#pragma unroll
      for (int i = 0; i < kN; ++i) pack.v[i] -= col + i == target ? hit : 0.0f;
    }
    Store(to + col, pack);
  });
}

template <typename T>
__global__ void __launch_bounds__(kThreadsMax) MaxKernel(View<T> logits, int cols, float* max) {
  const int64_t row = blockIdx.x;
  float largest = -INFINITY;
  ForRow(logits.Row(row), cols, false, [&](int, const auto& pack) {
    constexpr int kN = sizeof(pack) / sizeof(float);
#pragma unroll
    for (int i = 0; i < kN; ++i) largest = fmaxf(largest, pack.v[i]);
  });
  largest = BlockReduce(largest, -INFINITY, Max());
  if (threadIdx.x == 0) max[row] = largest;
}

template <typename T>
__global__ void __launch_bounds__(kThreadsMax) SumsKernel(const LossOperands<T> a) {
  const int64_t row = blockIdx.x;
  const T* from = a.logits.Row(row);
  const float largest = a.max[row];
  const int64_t target = a.targets[row] - a.first_class;
  float sum = 0.0f, before = 0.0f;
  ForRow(from, a.cols, false, [&](int col, const auto& pack) {
    constexpr int kN = sizeof(pack) / sizeof(float);
#pragma unroll
    for (int i = 0; i < kN; ++i) {
      sum += ExpOfDifference<T>(pack.v[i], largest);
      before += col + i < target && pack.v[i] == largest ? 1.0f : 0.0f;
    }
  });
  sum = BlockSum(sum);
  before = BlockSum(before);
  if (threadIdx.x != 0) return;
  a.sums.Row(0)[row] = sum;
  a.sums.Row(2)[row] = before;
  a.sums.Row(1)[row] = target >= 0 && target < a.cols ? ToFloat(from[target]) - largest : 0.0f;
}

// totals += sums over rows.
__global__ void __launch_bounds__(kThreadsMax)
    TotalsKernel(const float2* losses, int64_t rows, float* totals) {
  double loss = 0, counted = 0;
  for (int64_t row = threadIdx.x; row < rows; row += blockDim.x) {
    loss += losses[row].x;
    counted += losses[row].y;
  }
  loss = BlockReduce(loss, 0.0, Sum());
  counted = BlockReduce(counted, 0.0, Sum());
  if (threadIdx.x != 0) return;
  totals[0] += static_cast<float>(loss);
  totals[1] += static_cast<float>(counted);
}

unsigned Rows(const Tensor& x) {
  ATOLL_CHECK(x.rows < INT32_MAX && x.cols < INT32_MAX, "too many rows or columns for a kernel");
  return static_cast<unsigned>(x.rows);
}

// A block for each part, of so many columns, of each row.
dim3 Parts(const Tensor& x, int64_t width) {
  ATOLL_CHECK(x.cols / width <= 65535, "too many parts of a row for a kernel");
  return dim3(Rows(x), static_cast<unsigned>(x.cols / width));
}

// Calls function.operator()<T, N>(threads) with N elements a pack.
template <typename Function>
void ForPacks(DType dtype, std::initializer_list<Tensor> tensors, int64_t cols,
              const Function& function) {
  ForType(dtype, [&]<typename T>() {
    ForPack<kWide<T>>(tensors, cols,
                      [&]<int N>() { function.template operator()<T, N>(ThreadsFor(cols / N)); });
  });
}

}  // namespace

void Enqueue(const Queue& queue, const NormForward& op) {
  const dim3 grid = Parts(op.x, op.w.cols);
  const auto width = static_cast<int>(op.w.cols);
  ForPacks(op.x.dtype, {op.x, op.w, op.b, op.y}, width, [&]<typename T, int N>(dim3 threads) {
    const T *const w = static_cast<const T*>(op.w.data), *const b =
                                                             static_cast<const T*>(op.b.data);
    const View<T> x = MakeView<T>(op.x), y = MakeView<T>(op.y);
    if (op.centred()) {
      Launch(queue, grid, threads, 0, "LayerNormForward", LayerForwardKernel<T, N>, x, w, b, y,
             op.mean.f32(), op.rstd.f32(), width, op.eps);
    } else {
      Launch(queue, grid, threads, 0, "RmsNormForward", RmsForwardKernel<T, N>, x, w, y,
             op.rstd.f32(), width, op.eps);
    }
  });
}

void Enqueue(const Queue& queue, const NormBackwardInput& op) {
  const dim3 grid = Parts(op.x, op.w.cols);
  ForPacks(op.x.dtype, {op.dy, op.x, op.w, op.add, op.dx}, op.w.cols,
           [&]<typename T, int N>(dim3 threads) {
             const auto kernel =
                 op.centred() ? NormBackwardKernel<T, N, true> : NormBackwardKernel<T, N, false>;
             Launch(queue, grid, threads, 0, "NormBackwardInput", kernel, MakeView<T>(op.dy),
                    MakeView<T>(op.x), static_cast<const T*>(op.w.data),
                    static_cast<const float*>(op.mean.data), op.rstd.f32(), MakeView<T>(op.add),
                    MakeView<T>(op.dx), static_cast<int>(op.w.cols));
           });
}

int64_t ScratchBytes(const CrossEntropy& op) {
  return op.logits.rows * static_cast<int64_t>(sizeof(float2));
}

void Enqueue(const Queue& queue, const CrossEntropy& op, Workspace workspace) {
  ATOLL_CHECK(workspace.bytes >= ScratchBytes(op), "workspace too small");
  auto* losses = static_cast<float2*>(workspace.data);
  ForType(op.logits.dtype, [&]<typename T>() {
    const LossOperands<T> operands{.logits = MakeView<T>(op.logits),
                                   .dlogits = MakeView<T>(op.dlogits),
                                   .targets = op.targets.as<int32_t>(),
                                   .max = static_cast<const float*>(op.max.data),
                                   .sums = MakeView<float>(op.sums),
                                   .first_class = op.first_class,
                                   .cols = static_cast<int>(op.logits.cols),
                                   .grad_scale = op.grad_scale,
                                   .smoothing = op.smoothing,
                                   .ignore_index = op.ignore_index};
    const bool is_long = op.logits.cols > kLongRow;
    const dim3 threads = is_long ? dim3(kThreadsOfLongRow) : ThreadsFor(op.logits.cols / kWide<T>);
    // 16 more for where the row begins.
    const int64_t kept_bytes = op.logits.cols * static_cast<int64_t>(sizeof(T)) + 16;
    const bool keep = is_long && op.dlogits.present() && !op.max.present() &&
                      kept_bytes <= kKeptRowBytesMax &&
                      SharedBytesOfDevice() > 2 * kKeptRowBytesMax;
    Launch(queue, dim3(Rows(op.logits)), threads, keep ? kept_bytes : 0, "CrossEntropy",
           keep ? CrossEntropyKernel<T, true> : CrossEntropyKernel<T, false>, operands, losses);
  });
  Launch(queue, dim3(1), dim3(kThreadsMax), 0, "CrossEntropy totals", TotalsKernel, losses,
         op.logits.rows, op.totals.f32());
}

void Enqueue(const Queue& queue, const CrossEntropyMax& op) {
  ForType(op.logits.dtype, [&]<typename T>() {
    Launch(queue, dim3(Rows(op.logits)), ThreadsFor(op.logits.cols / kWide<T>), 0,
           "CrossEntropyMax", MaxKernel<T>, MakeView<T>(op.logits),
           static_cast<int>(op.logits.cols), op.max.f32());
  });
}

void Enqueue(const Queue& queue, const CrossEntropySums& op) {
  ForType(op.logits.dtype, [&]<typename T>() {
    const LossOperands<T> operands{.logits = MakeView<T>(op.logits),
                                   .targets = op.targets.as<int32_t>(),
                                   .max = op.max.f32(),
                                   .sums = MakeView<float>(op.sums),
                                   .first_class = op.first_class,
                                   .cols = static_cast<int>(op.logits.cols)};
    Launch(queue, dim3(Rows(op.logits)), ThreadsFor(op.logits.cols / kWide<T>), 0,
           "CrossEntropySums", SumsKernel<T>, operands);
  });
}

}  // namespace atl::ATOLL_DEVICE
