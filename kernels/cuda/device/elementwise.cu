// Activations, sums, conversions, rotary positions and embeddings: every element is moved once, in
// packs of 16 bytes where rows allow it.
//
// Bytes per element of s bytes (reads + writes), and FLOP where they are not a handful:
//   GatedForward 3s, GatedBackward 5s (without `up` 2s, 3s), AddScaled 3s, Scale 2s,
//   Convert from + to, Rope 2s (the table stays in the cache), EmbeddingForward 2s,
//   FinishForward (2 + pre + add)s, FinishBackward (3 + add)s; tanh or exp about 20 FLOP.
//   DecodeWeights s + 1/2 or 1 for its code.

#include "kernels/cuda/device/device.h"
#include "kernels/cuda/device/launchers.h"
#include "kernels/cuda/device/map.h"

namespace atl::ATOLL_DEVICE {
namespace {

// ---- What is done to one pack ----

template <typename T, Activation kKind>
struct GatedForwardMap {
  View<T> gate, up, y;
  template <int N>
  __device__ void At(int64_t row, int64_t col) const {
    Pack<float, N> g = Load<N>(gate.Row(row) + col);
    const Pack<float, N> u = Load<N>(up.Row(row) + col);
#pragma unroll
    for (int i = 0; i < N; ++i) g.v[i] = Activate<kKind, T>(g.v[i]) * u.v[i];
    Store(y.Row(row) + col, g);
  }
};

template <typename T, Activation kKind>
struct GatedBackwardMap {
  View<T> gate, up, dy, dgate, dup;
  template <int N>
  __device__ void At(int64_t row, int64_t col) const {
    Pack<float, N> g = Load<N>(gate.Row(row) + col);
    Pack<float, N> u = Load<N>(up.Row(row) + col);
    const Pack<float, N> d = Load<N>(dy.Row(row) + col);
#pragma unroll
    for (int i = 0; i < N; ++i) {
      const float x = g.v[i];
      g.v[i] = d.v[i] * u.v[i] * ActivateDerivative<kKind, T>(x);
      u.v[i] = d.v[i] * Activate<kKind, T>(x);
    }
    Store(dgate.Row(row) + col, g);
    Store(dup.Row(row) + col, u);
  }
};

template <typename T>
struct SoftcapForwardMap {
  View<T> x, y;
  float cap;
  template <int N>
  __device__ void At(int64_t row, int64_t col) const {
    Pack<float, N> v = Load<N>(x.Row(row) + col);
#pragma unroll
    for (int i = 0; i < N; ++i) v.v[i] = cap * Tanh<T>(v.v[i] / cap);
    Store(y.Row(row) + col, v);
  }
};

template <typename T>
struct SoftcapBackwardMap {
  View<T> x, dy, dx;
  float cap;
  template <int N>
  __device__ void At(int64_t row, int64_t col) const {
    const Pack<float, N> v = Load<N>(x.Row(row) + col);
    Pack<float, N> d = Load<N>(dy.Row(row) + col);
#pragma unroll
    for (int i = 0; i < N; ++i) {
      const float t = Tanh<T>(v.v[i] / cap);
      d.v[i] *= 1.0f - t * t;
    }
    Store(dx.Row(row) + col, d);
  }
};

// kScaleNumbers and kNf4Numbers, which a device does not see as tables.
__device__ inline float ScaleNumber(int code) {
  if (code == 127 || code == 255) return code == 127 ? 0.0f : 1.0f;
  int at = code > 127 ? code - 128 : 126 - code;
  double power = 1e-6;
  int cells = 1;
  for (; at >= cells; cells *= 2, power *= 10) at -= cells;
  const double size = power * (0.1 + 0.9 * (at + 0.5) / cells);
  return static_cast<float>(code > 127 ? size : -size);
}
__device__ inline float Nf4Number(int code) {
  static const float kNumbers[16] = {
      kNf4Numbers[0],  kNf4Numbers[1],  kNf4Numbers[2],  kNf4Numbers[3],
      kNf4Numbers[4],  kNf4Numbers[5],  kNf4Numbers[6],  kNf4Numbers[7],
      kNf4Numbers[8],  kNf4Numbers[9],  kNf4Numbers[10], kNf4Numbers[11],
      kNf4Numbers[12], kNf4Numbers[13], kNf4Numbers[14], kNf4Numbers[15]};
  return kNumbers[code];
}

template <typename T, WeightCode kCode>
struct DecodeMap {
  const uint8_t* codes;
  const uint8_t* scales;
  const float* coarse;
  int64_t first_scale, scale_step;
  View<T> y;
  template <int N>
  __device__ void At(int64_t row, int64_t col) const {
    const int64_t at = row * y.stride + col;
    const int64_t place = first_scale + row * scale_step + col / kWeightBlock;
    const float spread = coarse[1 + place / kScaleBlock] * ScaleNumber(scales[at / kWeightBlock]);
    const float scale = coarse[0] + spread;
    Pack<float, N> out;
#pragma unroll
    for (int i = 0; i < N; ++i) {
      const int64_t element = at + i;
      if constexpr (kCode == WeightCode::kNf4) {
        out.v[i] = Nf4Number(codes[element / 2] >> (element % 2 == 0 ? 0 : 4) & 15) * scale;
      } else {
        out.v[i] = static_cast<float>(static_cast<int8_t>(codes[element])) / kInt8Largest * scale;
      }
    }
    Store(y.Row(row) + col, out);
  }
};

// y = activation(raw + bias) + add; GatedForward without `up` has neither.
template <typename T, Activation kKind>
struct FinishForwardMap {
  View<T> raw, bias, add, pre, y;
  template <int N>
  __device__ void At(int64_t row, int64_t col) const {
    Pack<float, N> x = Load<N>(raw.Row(row) + col);
    const Pack<float, N> b = LoadOrZero<N>(bias.data, col);
    const Pack<float, N> a = LoadOrZero<N>(add.data, row * add.stride + col);
#pragma unroll
    for (int i = 0; i < N; ++i) x.v[i] += b.v[i];
    if (pre.data != nullptr) Store(pre.Row(row) + col, x);
#pragma unroll
    for (int i = 0; i < N; ++i) x.v[i] = Activate<kKind, T>(x.v[i]) + a.v[i];
    Store(y.Row(row) + col, x);
  }
};

template <typename T, Activation kKind>
struct FinishBackwardMap {
  View<T> raw, pre, add, dx;
  template <int N>
  __device__ void At(int64_t row, int64_t col) const {
    Pack<float, N> d = Load<N>(raw.Row(row) + col);
    const Pack<float, N> x = Load<N>(pre.Row(row) + col);
    const Pack<float, N> a = LoadOrZero<N>(add.data, row * add.stride + col);
#pragma unroll
    for (int i = 0; i < N; ++i) d.v[i] = d.v[i] * ActivateDerivative<kKind, T>(x.v[i]) + a.v[i];
    Store(dx.Row(row) + col, d);
  }
};

template <typename A, typename B, typename Out>
struct AddScaledMap {
  View<A> a;
  View<B> b;
  View<Out> out;
  float alpha;
  template <int N>
  __device__ void At(int64_t row, int64_t col) const {
    Pack<float, N> x = Load<N>(a.Row(row) + col);
    const Pack<float, N> y = Load<N>(b.Row(row) + col);
#pragma unroll
    for (int i = 0; i < N; ++i) x.v[i] += alpha * y.v[i];
    Store(out.Row(row) + col, x);
  }
};

template <typename From, typename To>
struct ScaledCopyMap {
  View<From> from;
  View<To> to;
  float factor;
  template <int N>
  __device__ void At(int64_t row, int64_t col) const {
    Pack<float, N> x = Load<N>(from.Row(row) + col);
#pragma unroll
    for (int i = 0; i < N; ++i) x.v[i] *= factor;
    Store(to.Row(row) + col, x);
  }
};

// Four bytes that are no floats, so that tokens survive as they are.
struct CopyTokensMap {
  View<int32_t> from, to;
  template <int N>
  __device__ void At(int64_t row, int64_t col) const {
    *reinterpret_cast<Pack<int32_t, N>*>(to.Row(row) + col) =
        *reinterpret_cast<const Pack<int32_t, N>*>(from.Row(row) + col);
  }
};

// Columns are the angles of all heads: `col` = head * half + i.
template <typename T>
struct RopeMap {
  View<T> x;
  View<float> table;
  Positions positions;
  int half;
  float sign;
  template <int N>
  __device__ void At(int64_t row, int64_t col) const {
    const int head = static_cast<int>(col) / half, i = static_cast<int>(col) % half;
    T* first = x.Row(row) + int64_t{head} * 2 * half + i;
    const float* angles = table.Row(positions.At(row)) + i;
    Pack<float, N> a = Load<N>(first), b = Load<N>(first + half);
#pragma unroll
    for (int j = 0; j < N; ++j) {
      const float cosine = angles[j], sine = sign * angles[half + j];
      const float turned = a.v[j] * cosine - b.v[j] * sine;
      b.v[j] = b.v[j] * cosine + a.v[j] * sine;
      a.v[j] = turned;
    }
    Store(first, a);
    Store(first + half, b);
  }
};

template <typename T>
struct EmbeddingForwardMap {
  const int32_t* tokens;
  View<T> table, positions, types, y;
  Positions at;
  int64_t first_token, table_rows, type_rows;  // a token or type outside has no row here
  int32_t token_mask;
  template <int N>
  __device__ void At(int64_t row, int64_t col) const {
    const int64_t of_table = (tokens[row] & token_mask) - first_token;
    const bool here = of_table >= 0 && of_table < table_rows;
    Pack<float, N> x = LoadOrZero<N>(here ? table.data : nullptr, of_table * table.stride + col);
    const Pack<float, N> p = LoadOrZero<N>(positions.data, at.At(row) * positions.stride + col);
    const int64_t type = static_cast<uint32_t>(tokens[row]) >> kTypeShift;
    const Pack<float, N> t =
        LoadOrZero<N>(type < type_rows ? types.data : nullptr, type * types.stride + col);
#pragma unroll
    for (int i = 0; i < N; ++i) x.v[i] += p.v[i] + t.v[i];
    Store(y.Row(row) + col, x);
  }
};

}  // namespace

// ---- Launchers ----

void Enqueue(const Queue& queue, const GatedForward& op) {
  if (!op.up.present()) {
    return Enqueue(queue, FinishForward{.raw = op.gate, .y = op.y, .activation = op.kind});
  }
  ForType(op.y.dtype, [&]<typename T>() {
    ForActivation(op.kind, [&]<Activation kKind>() {
      const GatedForwardMap<T, kKind> map{MakeView<T>(op.gate), MakeView<T>(op.up),
                                          MakeView<T>(op.y)};
      Map<kWide<T>>(queue, "GatedForward", map, {op.gate, op.up, op.y}, op.y);
    });
  });
}

void Enqueue(const Queue& queue, const GatedBackward& op) {
  if (!op.up.present()) {
    return Enqueue(
        queue, FinishBackward{.raw = op.dy, .dx = op.dgate, .activation = op.kind, .pre = op.gate});
  }
  ForType(op.dy.dtype, [&]<typename T>() {
    ForActivation(op.kind, [&]<Activation kKind>() {
      const GatedBackwardMap<T, kKind> map{MakeView<T>(op.gate), MakeView<T>(op.up),
                                           MakeView<T>(op.dy), MakeView<T>(op.dgate),
                                           MakeView<T>(op.dup)};
      Map<kWide<T>>(queue, "GatedBackward", map, {op.gate, op.up, op.dy, op.dgate, op.dup}, op.dy);
    });
  });
}

void Enqueue(const Queue& queue, const SoftcapForward& op) {
  ForType(op.y.dtype, [&]<typename T>() {
    const SoftcapForwardMap<T> map{MakeView<T>(op.x), MakeView<T>(op.y), op.cap};
    Map<kWide<T>>(queue, "SoftcapForward", map, {op.x, op.y}, op.y);
  });
}

void Enqueue(const Queue& queue, const SoftcapBackward& op) {
  ForType(op.dx.dtype, [&]<typename T>() {
    const SoftcapBackwardMap<T> map{MakeView<T>(op.x), MakeView<T>(op.dy), MakeView<T>(op.dx),
                                    op.cap};
    Map<kWide<T>>(queue, "SoftcapBackward", map, {op.x, op.dy, op.dx}, op.dx);
  });
}

void Enqueue(const Queue& queue, const DecodeWeights& op) {
  ForType(op.y.dtype, [&]<typename T>() {
    const auto enqueue = [&]<WeightCode kCode>() {
      const DecodeMap<T, kCode> map{static_cast<const uint8_t*>(op.codes.data),
                                    static_cast<const uint8_t*>(op.scales.data),
                                    static_cast<const float*>(op.coarse.data),
                                    op.first_scale,
                                    op.scale_step,
                                    MakeView<T>(op.y)};
      MapRows<kWide<T>>(queue, "DecodeWeights", map, {op.y}, op.y.rows, op.y.cols);
    };
    if (op.code == WeightCode::kNf4) {
      enqueue.template operator()<WeightCode::kNf4>();
    } else {
      enqueue.template operator()<WeightCode::kInt8>();
    }
  });
}

void Enqueue(const Queue& queue, const FinishForward& op) {
  ForType(op.y.dtype, [&]<typename T>() {
    ForActivation(op.activation, [&]<Activation kKind>() {
      const FinishForwardMap<T, kKind> map{MakeView<T>(op.raw), MakeView<T>(op.bias),
                                           MakeView<T>(op.add), MakeView<T>(op.pre),
                                           MakeView<T>(op.y)};
      if (op.bias.present()) {
        MapRows<kWide<T>>(queue, "FinishForward", map, {op.raw, op.bias, op.add, op.pre, op.y},
                          op.y.rows, op.y.cols);
      } else {
        Map<kWide<T>>(queue, "FinishForward", map, {op.raw, op.add, op.pre, op.y}, op.y);
      }
    });
  });
}

void Enqueue(const Queue& queue, const FinishBackward& op) {
  ForType(op.dx.dtype, [&]<typename T>() {
    ForActivation(op.activation, [&]<Activation kKind>() {
      const FinishBackwardMap<T, kKind> map{MakeView<T>(op.raw), MakeView<T>(op.pre),
                                            MakeView<T>(op.add), MakeView<T>(op.dx)};
      Map<kWide<T>>(queue, "FinishBackward", map, {op.raw, op.pre, op.add, op.dx}, op.dx);
    });
  });
}

void Enqueue(const Queue& queue, const AddScaled& op) {
  ForType(op.a.dtype, [&]<typename A>() {
    ForType(op.b.dtype, [&]<typename B>() {
      ForType(op.out.dtype, [&]<typename Out>() {
        const AddScaledMap<A, B, Out> map{MakeView<A>(op.a), MakeView<B>(op.b),
                                          MakeView<Out>(op.out), op.alpha};
        constexpr int kW = sizeof(A) + sizeof(B) + sizeof(Out) == 12 ? 4 : 8;
        Map<kW>(queue, "AddScaled", map, {op.a, op.b, op.out}, op.out);
      });
    });
  });
}

void Enqueue(const Queue& queue, const Scale& op) {
  ForType(op.x.dtype, [&]<typename T>() {
    const ScaledCopyMap<T, T> map{MakeView<T>(op.x), MakeView<T>(op.x), op.factor};
    Map<kWide<T>>(queue, "Scale", map, {op.x}, op.x);
  });
}

void Enqueue(const Queue& queue, const Convert& op) {
  if (op.to.dtype == DType::kInt32) {
    const CopyTokensMap map{MakeView<int32_t>(op.from), MakeView<int32_t>(op.to)};
    return Map<4>(queue, "Convert", map, {op.from, op.to}, op.to);
  }
  ForType(op.from.dtype, [&]<typename From>() {
    ForType(op.to.dtype, [&]<typename To>() {
      const ScaledCopyMap<From, To> map{MakeView<From>(op.from), MakeView<To>(op.to), 1.0f};
      constexpr int kW = sizeof(From) + sizeof(To) == 8 ? 4 : 8;
      Map<kW>(queue, "Convert", map, {op.from, op.to}, op.to);
    });
  });
}

void Enqueue(const Queue& queue, const Rope& op) {
  ForType(op.x.dtype, [&]<typename T>() {
    const auto half = static_cast<int>(op.table.cols / 2);
    const RopeMap<T> map{MakeView<T>(op.x), MakeView<float>(op.table), MakePositions(op), half,
                         op.inverse ? -1.0f : 1.0f};
    // Both halves of a head must begin on a pack.
    ForPack<kWide<T>>({op.x}, half,
                      [&]<int N>() { LaunchMap<N>(queue, "Rope", map, op.x.rows, op.x.cols / 2); });
  });
}

void Enqueue(const Queue& queue, const EmbeddingForward& op) {
  ForType(op.y.dtype, [&]<typename T>() {
    const EmbeddingForwardMap<T> map{op.tokens.as<int32_t>(),
                                     MakeView<T>(op.table),
                                     MakeView<T>(op.positions),
                                     MakeView<T>(op.typed ? op.types : Tensor()),
                                     MakeView<T>(op.y),
                                     MakePositions(op),
                                     op.first_token,
                                     op.table.rows,
                                     op.types.rows,
                                     op.typed ? kTokenMask : -1};
    MapRows<kWide<T>>(queue, "EmbeddingForward", map, {op.table, op.positions, op.types, op.y},
                      op.y.rows, op.y.cols);
  });
}

}  // namespace atl::ATOLL_DEVICE
