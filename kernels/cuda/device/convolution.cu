// The parts of convolutions beside products: windows laid out as rows (columns of a product), the
// way back, and weights turned to match; and convolutions of groups, whole, which have few products
// an element.
//
// With N output rows, I input and O output channels, K taps, s bytes an element:
//   ConvColumns     N I K s read (mostly from caches) and written
//   FoldColumns     N I K s read, one sum each
//   grouped forward, for the input, for the weights: 2 N O K I / groups FLOP each

#include "kernels/cuda/device/column_sums.h"
#include "kernels/cuda/device/launchers.h"
#include "kernels/cuda/device/map.h"
#include "kernels/cuda/device/window.h"

namespace atl::ATOLL_DEVICE {
namespace {

template <typename T>
struct ColumnsMap {
  Window window;
  int channels;
  View<T> x, columns;
  template <int N>
  __device__ void At(int64_t row, int64_t col) const {
    const int tap = static_cast<int>(col / channels), channel = static_cast<int>(col % channels);
    const int64_t from = tap < window.taps() ? window.InRow(row, tap) : -1;
    const Pack<float, N> v = LoadOrZero<N>(from < 0 ? nullptr : x.data, from * x.stride + channel);
    Store(columns.Row(row) + col, v);
  }
};

template <typename T>
struct FoldMap {
  Window window;
  int channels;
  View<T> columns, dx;
  template <int N>
  __device__ void At(int64_t row, int64_t channel) const {
    Pack<float, N> sum = {};
    for (int tap = 0; tap < window.taps(); ++tap) {
      const int64_t from = window.OutRow(row, tap);
      if (from < 0) continue;
      const Pack<float, N> v = Load<N>(columns.Row(from) + int64_t{tap} * channels + channel);
#pragma unroll
      for (int i = 0; i < N; ++i) sum.v[i] += v.v[i];
    }
    Store(dx.Row(row) + channel, sum);
  }
};

// Columns of weights by tap, then channel, in place of by channel, then tap; zeroes behind them.
template <typename T>
struct TurnMap {
  int channels, taps;
  View<T> w, turned;
  template <int N>
  __device__ void At(int64_t row, int64_t col) const {
    static_assert(N == 1);
    const int64_t tap = col / channels, channel = col % channels;
    T* to = turned.Row(row) + col;
    if (tap < taps) {
      *to = w.Row(row)[channel * taps + tap];
    } else {
      Put(to, 0.0f);
    }
  }
};

struct AddTurnedMap {
  int channels, taps;
  View<float> turned, dw;
  template <int N>
  __device__ void At(int64_t row, int64_t col) const {
    static_assert(N == 1);
    dw.Row(row)[col] += turned.Row(row)[col % taps * channels + col / taps];
  }
};

// ---- Of groups ----

struct Groups {
  Window window;
  int in, out;  // channels of a group
};

Groups GroupsFrom(const ConvShape& s) {
  return {WindowFrom(s.window), static_cast<int>(s.in_channels / s.groups),
          static_cast<int>(s.out_channels / s.groups)};
}

template <typename T>
struct GroupedForwardMap {
  Groups groups;
  View<T> x, w, y;
  template <int N>
  __device__ void At(int64_t row, int64_t col) const {
    static_assert(N == 1);
    const int taps = groups.window.taps();
    const T* weights = w.Row(col);
    const int64_t first = col / groups.out * groups.in;
    float sum = 0.0f;
    for (int tap = 0; tap < taps; ++tap) {
      const int64_t from = groups.window.InRow(row, tap);
      if (from < 0) continue;
      for (int i = 0; i < groups.in; ++i) {
        sum += ToFloat(x.Row(from)[first + i]) * ToFloat(weights[i * taps + tap]);
      }
    }
    Put(y.Row(row) + col, sum);
  }
};

template <typename T>
struct GroupedInputMap {
  Groups groups;
  View<T> dy, w, dx;
  template <int N>
  __device__ void At(int64_t row, int64_t col) const {
    static_assert(N == 1);
    const int taps = groups.window.taps();
    const int64_t first = col / groups.in * groups.out, channel = col % groups.in;
    float sum = 0.0f;
    for (int tap = 0; tap < taps; ++tap) {
      const int64_t from = groups.window.OutRow(row, tap);
      if (from < 0) continue;
      for (int o = 0; o < groups.out; ++o) {
        sum += ToFloat(dy.Row(from)[first + o]) * ToFloat(w.Row(first + o)[channel * taps + tap]);
      }
    }
    Put(dx.Row(row) + col, sum);
  }
};

// The plane is the column of the weights: a channel of the group and a tap.
template <typename T>
struct GroupedWeightTerms {
  static constexpr int kSums = 1;
  Groups groups;
  View<T> x, dy;
  template <int N>
  __device__ void Add(int64_t row, int64_t col, Pack<float, N> (&sums)[1]) const {
    const int taps = groups.window.taps(), plane = static_cast<int>(blockIdx.z);
    const int64_t from = groups.window.InRow(row, plane % taps);
    if (from < 0) return;
    const T* inputs = x.Row(from) + plane / taps;
    const Pack<float, N> d = Load<N>(dy.Row(row) + col);
#pragma unroll
    for (int i = 0; i < N; ++i) {
      sums[0].v[i] += d.v[i] * ToFloat(inputs[(col + i) / groups.out * groups.in]);
    }
  }
};

struct AddToWeights {
  View<float> dw;
  __device__ void operator()(int64_t plane, int64_t col, const float (&sums)[1]) const {
    dw.Row(col)[plane] += sums[0];
  }
};

int Taps(const ConvShape& s) { return static_cast<int>(s.window.kernel * s.window.kernel); }

}  // namespace

void Enqueue(const Queue& queue, const ConvColumns& op) {
  ForType(op.x.dtype, [&]<typename T>() {
    const ColumnsMap<T> map{WindowFrom(op.shape.window), static_cast<int>(op.x.cols),
                            MakeView<T>(op.x), MakeView<T>(op.columns)};
    if (op.x.cols % kWide<T> == 0) {
      MapRows<kWide<T>>(queue, "ConvColumns", map, {op.x, op.columns}, op.columns.rows,
                        op.columns.cols);
    } else {
      LaunchMap<1>(queue, "ConvColumns", map, op.columns.rows, op.columns.cols);
    }
  });
}

void Enqueue(const Queue& queue, const FoldColumns& op) {
  ForType(op.dx.dtype, [&]<typename T>() {
    const FoldMap<T> map{WindowFrom(op.shape.window), static_cast<int>(op.dx.cols),
                         MakeView<T>(op.columns), MakeView<T>(op.dx)};
    MapRows<kWide<T>>(queue, "FoldColumns", map, {op.columns, op.dx}, op.dx.rows, op.dx.cols);
  });
}

void Enqueue(const Queue& queue, const TurnWeights& op) {
  ForType(op.w.dtype, [&]<typename T>() {
    const TurnMap<T> map{static_cast<int>(op.shape.in_channels), Taps(op.shape), MakeView<T>(op.w),
                         MakeView<T>(op.turned)};
    LaunchMap<1>(queue, "TurnWeights", map, op.turned.rows, op.turned.cols);
  });
}

void Enqueue(const Queue& queue, const AddTurnedWeights& op) {
  const AddTurnedMap map{static_cast<int>(op.shape.in_channels), Taps(op.shape),
                         MakeView<float>(op.turned), MakeView<float>(op.dw)};
  LaunchMap<1>(queue, "AddTurnedWeights", map, op.dw.rows, op.dw.cols);
}

void Enqueue(const Queue& queue, const ConvForward& op) {
  ForType(op.y.dtype, [&]<typename T>() {
    const GroupedForwardMap<T> map{GroupsFrom(op.shape), MakeView<T>(op.x), MakeView<T>(op.w),
                                   MakeView<T>(op.y)};
    LaunchMap<1>(queue, "ConvForward", map, op.y.rows, op.y.cols);
  });
}

void Enqueue(const Queue& queue, const ConvBackwardInput& op) {
  ForType(op.dx.dtype, [&]<typename T>() {
    const GroupedInputMap<T> map{GroupsFrom(op.shape), MakeView<T>(op.dy), MakeView<T>(op.w),
                                 MakeView<T>(op.dx)};
    LaunchMap<1>(queue, "ConvBackwardInput", map, op.dx.rows, op.dx.cols);
  });
}

int64_t ScratchBytes(const ConvBackwardWeight& op) {
  return ColumnSumBytes(1, op.shape.window.out_rows(), op.shape.out_channels,
                        op.shape.weight_cols());
}

void Enqueue(const Queue& queue, const ConvBackwardWeight& op, Workspace workspace) {
  ForType(op.x.dtype, [&]<typename T>() {
    const GroupedWeightTerms<T> terms{GroupsFrom(op.shape), MakeView<T>(op.x), MakeView<T>(op.dy)};
    SumColumns<T>(queue, "ConvBackwardWeight", terms, {op.dy},
                  {op.dy.rows, op.dy.cols, op.shape.weight_cols()},
                  AddToWeights{MakeView<float>(op.dw)}, workspace);
  });
}

}  // namespace atl::ATOLL_DEVICE
