// Pixels, pooling, the gates of squeeze-and-excitation, and hits.
//
// Bytes per element of s bytes: PixelsForward 4 + s; PoolForward s of the input (windows that
// overlap meet in caches) and of the output; PoolBackward likewise 2 s + add; ChannelGateForward
// 2s, ChannelGateBackward 5s; CountHits s.

#include "kernels/cuda/device/column_sums.h"
#include "kernels/cuda/device/launchers.h"
#include "kernels/cuda/device/map.h"
#include "kernels/cuda/device/window.h"

namespace atl::ATOLL_DEVICE {
namespace {

constexpr int kHitThreads = 1024;

template <typename T>
struct PixelsMap {
  const int32_t* pixels;
  T* y;
  int channels;
  float scale[kMaxPixelChannels], shift[kMaxPixelChannels];
  template <int N>
  __device__ void At(int64_t, int64_t at) const {
    const Pack<int32_t, N> from = *reinterpret_cast<const Pack<int32_t, N>*>(pixels + at);
    Pack<float, N> to;
#pragma unroll
    for (int i = 0; i < N; ++i) {
      const int channel = static_cast<int>((at + i) % channels);
      to.v[i] = static_cast<float>(from.v[i]) * scale[channel] + shift[channel];
    }
    Store(y + at, to);
  }
};

// The tap of each channel's largest element in a window: the first of several.
template <int N, typename T>
struct Largest {
  Pack<float, N> value = {};
  int tap[N] = {};
  __device__ Largest(const Window& window, const View<T>& x, int64_t out_row, int64_t col) {
    bool found = false;
    for (int at = 0; at < window.taps(); ++at) {
      const int64_t row = window.InRow(out_row, at);
      if (row < 0) continue;
      const Pack<float, N> v = Load<N>(x.Row(row) + col);
#pragma unroll
      for (int i = 0; i < N; ++i) {
        if (!found || v.v[i] > value.v[i]) value.v[i] = v.v[i], tap[i] = at;
      }
      found = true;
    }
  }
};

template <typename T, PoolKind kKind>
struct PoolForwardMap {
  Window window;
  View<T> x, y;
  template <int N>
  __device__ void At(int64_t row, int64_t col) const {
    if constexpr (kKind == PoolKind::kMax) {
      Store(y.Row(row) + col, Largest<N, T>(window, x, row, col).value);
    } else {
      Pack<float, N> sum = {};
      for (int tap = 0; tap < window.taps(); ++tap) {
        const Pack<float, N> v = Load<N>(x.Row(window.InRow(row, tap)) + col);
#pragma unroll
        for (int i = 0; i < N; ++i) sum.v[i] += v.v[i];
      }
#pragma unroll
      for (int i = 0; i < N; ++i) sum.v[i] /= static_cast<float>(window.taps());
      Store(y.Row(row) + col, sum);
    }
  }
};

// Every row of the input gathers from the windows that it lies in.
template <typename T, PoolKind kKind>
struct PoolBackwardMap {
  Window window;
  View<T> x, dy, add, dx;
  template <int N>
  __device__ void At(int64_t row, int64_t col) const {
    Pack<float, N> sum = {};
    for (int tap = 0; tap < window.taps(); ++tap) {
      const int64_t out = window.OutRow(row, tap);
      if (out < 0) continue;
      const Pack<float, N> d = Load<N>(dy.Row(out) + col);
      if constexpr (kKind == PoolKind::kMax) {
        const Largest<N, T> largest(window, x, out, col);
#pragma unroll
        for (int i = 0; i < N; ++i) sum.v[i] += largest.tap[i] == tap ? d.v[i] : 0.0f;
      } else {
#pragma unroll
        for (int i = 0; i < N; ++i) sum.v[i] += d.v[i] / static_cast<float>(window.taps());
      }
    }
    const Pack<float, N> a = LoadOrZero<N>(add.data, row * add.stride + col);
#pragma unroll
    for (int i = 0; i < N; ++i) sum.v[i] += a.v[i];
    Store(dx.Row(row) + col, sum);
  }
};

// y = x * sigmoid(gate); of dy in x's place, dx.
template <typename T>
struct GateMap {
  View<T> x, gate, y;
  int64_t rows_per_image;
  template <int N>
  __device__ void At(int64_t row, int64_t col) const {
    Pack<float, N> v = Load<N>(x.Row(row) + col);
    const Pack<float, N> g = Load<N>(gate.Row(row / rows_per_image) + col);
#pragma unroll
    for (int i = 0; i < N; ++i) v.v[i] *= Sigmoid<T>(g.v[i]);
    Store(y.Row(row) + col, v);
  }
};

template <typename T>
struct GateTerms {
  static constexpr int kSums = 1;
  View<T> x, dy;
  template <int N>
  __device__ void Add(int64_t row, int64_t col, Pack<float, N> (&sums)[1]) const {
    const Pack<float, N> v = Load<N>(x.Row(row) + col), d = Load<N>(dy.Row(row) + col);
#pragma unroll
    for (int i = 0; i < N; ++i) sums[0].v[i] += v.v[i] * d.v[i];
  }
};

// A part of the rows is an image.
template <typename T>
struct GateGradient {
  View<T> gate, dgate;
  __device__ void Take(int64_t, int64_t image, int64_t col, float sum) const {
    const float s = Sigmoid<T>(ToFloat(gate.Row(image)[col]));
    Put(dgate.Row(image) + col, sum * s * (1.0f - s));
  }
};

// One block: warps take a row in turn. `below_max`: of a vocabulary in parts, by row; behind it,
// how many classes before the target reach the maximum.
template <typename T>
__global__ void __launch_bounds__(kHitThreads)
    HitsKernel(View<T> logits, int64_t rows, int64_t classes, const int32_t* targets,
               const float* below_max, float* hits) {
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  float counted = 0.0f;
  for (int64_t row = warp; row < rows; row += kHitThreads / kWarp) {
    const int64_t target = targets[row];
    if (below_max != nullptr) {
      const bool hit = target >= 0 && below_max[row] == 0.0f && below_max[rows + row] == 0.0f;
      if (lane == 0 && hit) counted += 1.0f;
      continue;
    }
    if (target < 0 || target >= classes) continue;
    const float wanted = ToFloat(logits.Row(row)[target]);
    float better = 0.0f;  // classes that come before the target
    for (int64_t c = lane; c < classes; c += kWarp) {
      const float other = ToFloat(logits.Row(row)[c]);
      if (c < target ? !(other < wanted) : !(other <= wanted)) better += 1.0f;
    }
    better = GroupReduce<kWarp>(better, Sum());
    if (lane == 0 && better == 0.0f) counted += 1.0f;
  }
  counted = BlockReduce(counted, 0.0f, Sum());
  if (threadIdx.x == 0) *hits += counted;
}

// Calls function.operator()<T, kKind>().
template <typename Function>
void ForPool(DType dtype, PoolKind kind, const Function& function) {
  ForType(dtype, [&]<typename T>() {
    if (kind == PoolKind::kMax) {
      function.template operator()<T, PoolKind::kMax>();
    } else {
      function.template operator()<T, PoolKind::kAverage>();
    }
  });
}

}  // namespace

void Enqueue(const Queue& queue, const PixelsForward& op) {
  ForType(op.y.dtype, [&]<typename T>() {
    PixelsMap<T> map{
        op.pixels.as<int32_t>(), static_cast<T*>(op.y.data), static_cast<int>(op.y.cols), {}, {}};
    for (int64_t c = 0; c < op.y.cols; ++c) {
      map.scale[c] = op.scale[static_cast<size_t>(c)];
      map.shift[c] = op.shift[static_cast<size_t>(c)];
    }
    Map<kWide<T>>(queue, "PixelsForward", map, {op.pixels, op.y}, op.y);
  });
}

void Enqueue(const Queue& queue, const PoolForward& op) {
  ForPool(op.y.dtype, op.kind, [&]<typename T, PoolKind kKind>() {
    const PoolForwardMap<T, kKind> map{WindowFrom(op.shape), MakeView<T>(op.x), MakeView<T>(op.y)};
    MapRows<kWide<T>>(queue, "PoolForward", map, {op.x, op.y}, op.y.rows, op.y.cols);
  });
}

void Enqueue(const Queue& queue, const PoolBackward& op) {
  ForPool(op.dy.dtype, op.kind, [&]<typename T, PoolKind kKind>() {
    const PoolBackwardMap<T, kKind> map{WindowFrom(op.shape), MakeView<T>(op.x), MakeView<T>(op.dy),
                                        MakeView<T>(op.add), MakeView<T>(op.dx)};
    MapRows<kWide<T>>(queue, "PoolBackward", map, {op.x, op.dy, op.add, op.dx}, op.dx.rows,
                      op.dx.cols);
  });
}

void Enqueue(const Queue& queue, const ChannelGateForward& op) {
  ForType(op.y.dtype, [&]<typename T>() {
    const GateMap<T> map{MakeView<T>(op.x), MakeView<T>(op.gate), MakeView<T>(op.y),
                         op.x.rows / op.gate.rows};
    MapRows<kWide<T>>(queue, "ChannelGateForward", map, {op.x, op.gate, op.y}, op.x.rows,
                      op.x.cols);
  });
}

void Enqueue(const Queue& queue, const ChannelGateBackward& op) {
  const int64_t images = op.gate.rows, rows = op.x.rows / images, cols = op.x.cols;
  ATOLL_CHECK(images <= 65535, "too many images for one kernel");
  ForType(op.dx.dtype, [&]<typename T>() {
    const auto sums = [&]<int N>() {
      const dim3 grid(static_cast<unsigned>(CeilDiv(cols, kWarp * N)),
                      static_cast<unsigned>(images));
      Launch(queue, grid, dim3(kSumThreads), 0, "ChannelGateBackward gate",
             PartialSumsKernel<N, GateTerms<T>, GateGradient<T>>,
             GateTerms<T>{MakeView<T>(op.x), MakeView<T>(op.dy)}, op.x.rows, cols, rows,
             GateGradient<T>{MakeView<T>(op.gate), MakeView<T>(op.dgate)});
    };
    ForPack<kWide<T>>({op.x, op.dy}, cols, sums);
    const GateMap<T> map{MakeView<T>(op.dy), MakeView<T>(op.gate), MakeView<T>(op.dx), rows};
    MapRows<kWide<T>>(queue, "ChannelGateBackward", map, {op.dy, op.gate, op.dx}, op.x.rows, cols);
  });
}

void Enqueue(const Queue& queue, const CountHits& op) {
  ForType(op.logits.dtype, [&]<typename T>() {
    Launch(queue, dim3(1), dim3(kHitThreads), 0, "CountHits", HitsKernel<T>, MakeView<T>(op.logits),
           op.logits.rows, op.logits.cols, op.targets.as<int32_t>(),
           op.sums.present() ? op.sums.f32() + op.logits.rows : nullptr, op.hits.f32());
  });
}

}  // namespace atl::ATOLL_DEVICE
