// Batch normalisation: sums over rows first (the mean, then the variance about it; of the gradient
// both sums at once), then every element once.
//
// Bytes per element of s bytes: BatchNormForward 4s + add, by running statistics 2s + add;
// BatchNormBackwardInput 5s + 2 add + dadd. A handful of FLOP, with SiLU about 20.

#include "kernels/cuda/device/column_sums.h"
#include "kernels/cuda/device/launchers.h"
#include "kernels/cuda/device/map.h"

namespace atl::ATOLL_DEVICE {
namespace {

struct MeanFinish {
  float* mean;
  float rows;
  __device__ void operator()(int64_t, int64_t col, const float (&sums)[1]) const {
    mean[col] = sums[0] / rows;
  }
};

template <typename T>
struct VarianceTerms {
  static constexpr int kSums = 1;
  View<T> x;
  const float* mean;
  template <int N>
  __device__ void Add(int64_t row, int64_t col, Pack<float, N> (&sums)[1]) const {
    const Pack<float, N> v = Load<N>(x.Row(row) + col);
#pragma unroll
    for (int i = 0; i < N; ++i) {
      const float off = v.v[i] - mean[col + i];
      sums[0].v[i] += off * off;
    }
  }
};

struct RstdFinish {
  float* rstd;
  float rows, eps;
  __device__ void operator()(int64_t, int64_t col, const float (&sums)[1]) const {
    rstd[col] = rsqrtf(sums[0] / rows + eps);
  }
};

// By the batch's statistics.
template <typename T>
struct BatchStatistics {
  const float* mean;
  const float* rstd;
  __device__ float Mean(int64_t col) const { return mean[col]; }
  __device__ float Rstd(int64_t col) const { return rstd[col]; }
};

template <typename T>
struct RunningStatistics {
  const T* mean;
  const T* variance;
  float eps;
  __device__ float Mean(int64_t col) const { return ToFloat(mean[col]); }
  __device__ float Rstd(int64_t col) const {
    // A pseudo-gradient of few bits may have made it negative.
    return rsqrtf(fmaxf(ToFloat(variance[col]), 0.0f) + eps);
  }
};

template <typename T, Activation kKind, typename Statistics>
struct NormForwardMap {
  View<T> x, add, y;
  const T* w;
  const T* b;
  Statistics statistics;
  template <int N>
  __device__ void At(int64_t row, int64_t col) const {
    Pack<float, N> v = Load<N>(x.Row(row) + col);
    const Pack<float, N> a = LoadOrZero<N>(add.data, row * add.stride + col);
    const Pack<float, N> scale = Load<N>(w + col), shift = Load<N>(b + col);
#pragma unroll
    for (int i = 0; i < N; ++i) {
      const float normal = (v.v[i] - statistics.Mean(col + i)) * statistics.Rstd(col + i);
      v.v[i] = Activate<kKind, T>(normal * scale.v[i] + shift.v[i] + a.v[i]);
    }
    Store(y.Row(row) + col, v);
  }
};

// dz and (x - mean) * rstd of one pack.
template <typename T, Activation kKind>
struct NormGradient {
  View<T> x, add, dy;
  const T* w;
  const T* b;
  const float* mean;
  const float* rstd;
  template <int N>
  __device__ void Get(int64_t row, int64_t col, Pack<float, N>* dz, Pack<float, N>* normal) const {
    *normal = Load<N>(x.Row(row) + col);
    *dz = Load<N>(dy.Row(row) + col);
    const Pack<float, N> a = LoadOrZero<N>(add.data, row * add.stride + col);
    const Pack<float, N> scale = Load<N>(w + col);
    const Pack<float, N> shift = Load<N>(b + col);
#pragma unroll
    for (int i = 0; i < N; ++i) {
      normal->v[i] = (normal->v[i] - mean[col + i]) * rstd[col + i];
      const float z = normal->v[i] * scale.v[i] + shift.v[i] + a.v[i];
      dz->v[i] *= ActivateDerivative<kKind, T>(z);
    }
  }
};

template <typename T, Activation kKind>
struct NormGradientTerms {
  static constexpr int kSums = 2;
  NormGradient<T, kKind> gradient;
  template <int N>
  __device__ void Add(int64_t row, int64_t col, Pack<float, N> (&sums)[2]) const {
    Pack<float, N> dz, normal;
    gradient.template Get<N>(row, col, &dz, &normal);
#pragma unroll
    for (int i = 0; i < N; ++i) {
      sums[0].v[i] += dz.v[i];
      sums[1].v[i] += dz.v[i] * normal.v[i];
    }
  }
};

struct PutSums {
  View<float> out;
  __device__ void operator()(int64_t, int64_t col, const float (&sums)[2]) const {
    out.Row(0)[col] = sums[0];
    out.Row(1)[col] = sums[1];
  }
};

template <typename T, Activation kKind>
struct NormBackwardMap {
  NormGradient<T, kKind> gradient;
  View<float> sums;
  View<T> dx, dadd;
  float rows;
  template <int N>
  __device__ void At(int64_t row, int64_t col) const {
    Pack<float, N> dz, normal;
    gradient.template Get<N>(row, col, &dz, &normal);
    if (dadd.data != nullptr) Store(dadd.Row(row) + col, dz);
    const Pack<float, N> scale = Load<N>(gradient.w + col);
#pragma unroll
    for (int i = 0; i < N; ++i) {
      const float mean_dz = sums.Row(0)[col + i] / rows, mean_dot = sums.Row(1)[col + i] / rows;
      dz.v[i] = scale.v[i] * gradient.rstd[col + i] * (dz.v[i] - mean_dz - normal.v[i] * mean_dot);
    }
    Store(dx.Row(row) + col, dz);
  }
};

struct NormWeightMap {
  View<float> sums;
  const float* mean;
  const float* rstd;
  float *dw, *db, *dmean, *dvariance;
  float samples, unbiased, eps;
  template <int N>
  __device__ void At(int64_t, int64_t col) const {
    static_assert(N == 1);
    db[col] += sums.Row(0)[col];
    dw[col] += sums.Row(1)[col];
    dmean[col] += mean[col] * samples;
    dvariance[col] += (1.0f / (rstd[col] * rstd[col]) - eps) * unbiased * samples;
  }
};

struct RunningMap {
  float *running, *sums;
  Bf16* copy;
  float samples, momentum;
  bool zero_sums;
  template <int N>
  __device__ void At(int64_t, int64_t i) const {
    static_assert(N == 1);
    const float next = running[i] + momentum * (sums[i] / samples - running[i]);
    running[i] = next;
    if (zero_sums) sums[i] = 0.0f;
    if (copy != nullptr) Put(copy + i, next);
  }
};

// Calls function.operator()<kKind>(), of those that a normalisation may have.
template <typename Function>
void ForNormActivation(Activation kind, const Function& function) {
  if (kind == Activation::kRelu) return function.template operator()<Activation::kRelu>();
  if (kind == Activation::kSilu) return function.template operator()<Activation::kSilu>();
  function.template operator()<Activation::kNone>();
}

template <typename T, Activation kKind, typename Statistics>
void Normalise(const Queue& queue, const BatchNormForward& op, const Statistics& statistics) {
  const NormForwardMap<T, kKind, Statistics> map{MakeView<T>(op.x),
                                                 MakeView<T>(op.add),
                                                 MakeView<T>(op.y),
                                                 static_cast<const T*>(op.w.data),
                                                 static_cast<const T*>(op.b.data),
                                                 statistics};
  MapRows<kWide<T>>(queue, "BatchNormForward", map, {op.x, op.add, op.y, op.w, op.b}, op.x.rows,
                    op.x.cols);
}

}  // namespace

int64_t ScratchBytes(const BatchNormForward& op) { return ColumnSumBytes(1, op.x.rows, op.x.cols); }
int64_t ScratchBytes(const BatchNormBackwardInput& op) {
  return ColumnSumBytes(2, op.x.rows, op.x.cols);
}

void Enqueue(const Queue& queue, const BatchNormForward& op, Workspace workspace) {
  const auto rows = static_cast<float>(op.x.rows);
  ForType(op.x.dtype, [&]<typename T>() {
    ForNormActivation(op.activation, [&]<Activation kKind>() {
      if (op.running_mean.present()) {
        return Normalise<T, kKind>(
            queue, op,
            RunningStatistics<T>{static_cast<const T*>(op.running_mean.data),
                                 static_cast<const T*>(op.running_variance.data), op.eps});
      }
      const SumShape shape{op.x.rows, op.x.cols};
      SumColumns<T>(queue, "BatchNormForward mean", PlainTerms<T>{MakeView<T>(op.x)}, {op.x}, shape,
                    MeanFinish{op.mean.f32(), rows}, workspace);
      SumColumns<T>(queue, "BatchNormForward variance",
                    VarianceTerms<T>{MakeView<T>(op.x), op.mean.f32()}, {op.x}, shape,
                    RstdFinish{op.rstd.f32(), rows, op.eps}, workspace);
      Normalise<T, kKind>(queue, op, BatchStatistics<T>{op.mean.f32(), op.rstd.f32()});
    });
  });
}

void Enqueue(const Queue& queue, const BatchNormBackwardInput& op, Workspace workspace) {
  ForType(op.x.dtype, [&]<typename T>() {
    ForNormActivation(op.activation, [&]<Activation kKind>() {
      const NormGradient<T, kKind> gradient{MakeView<T>(op.x),
                                            MakeView<T>(op.add),
                                            MakeView<T>(op.dy),
                                            static_cast<const T*>(op.w.data),
                                            static_cast<const T*>(op.b.data),
                                            op.mean.f32(),
                                            op.rstd.f32()};
      SumColumns<T>(queue, "BatchNormBackwardInput sums", NormGradientTerms<T, kKind>{gradient},
                    {op.x, op.add, op.dy, op.w, op.b}, {op.x.rows, op.x.cols},
                    PutSums{MakeView<float>(op.sums)}, workspace);
      const NormBackwardMap<T, kKind> map{gradient, MakeView<float>(op.sums), MakeView<T>(op.dx),
                                          MakeView<T>(op.dadd), static_cast<float>(op.x.rows)};
      MapRows<kWide<T>>(queue, "BatchNormBackwardInput", map,
                        {op.x, op.add, op.dy, op.w, op.b, op.dx, op.dadd}, op.x.rows, op.x.cols);
    });
  });
}

void Enqueue(const Queue& queue, const BatchNormBackwardWeight& op) {
  const auto rows = static_cast<float>(op.rows);
  const NormWeightMap map{MakeView<float>(op.sums),
                          op.mean.f32(),
                          op.rstd.f32(),
                          op.dw.f32(),
                          op.db.f32(),
                          op.dmean.f32(),
                          op.dvariance.f32(),
                          static_cast<float>(op.samples),
                          op.rows > 1 ? rows / (rows - 1.0f) : 1.0f,
                          op.eps};
  LaunchMap<1>(queue, "BatchNormBackwardWeight", map, 1, op.sums.cols);
}

void Enqueue(const Queue& queue, const RunningMean& op) {
  const RunningMap map{op.running.f32(), op.sums.f32(), static_cast<Bf16*>(op.param_copy.data),
                       op.samples,       op.momentum,   op.zero_sums};
  LaunchMap<1>(queue, "RunningMean", map, 1, op.running.cols);
}

}  // namespace atl::ATOLL_DEVICE
