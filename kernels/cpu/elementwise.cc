// Rotary positions, activations, sums and conversions: each reads and writes every byte once.

#include <cstring>

#include "kernels/cpu/activation.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/simd.h"

namespace atl {
namespace {

using simd::kLanes;
using simd::LoadUpTo;
using simd::StoreUpTo;

// One row of heads: first half * cos - second half * sin, and the other way round.
ATOLL_KERNEL(RopeRow, (float* x, const float* table, int64_t heads, int64_t half, float direction),
             (x, table, heads, half, direction)) {
  for (int64_t head = 0; head < heads; ++head, x += 2 * half) {
    for (int64_t i = 0; i < half; i += kLanes) {
      const int64_t n = half - i;
      const V cosine = LoadUpTo<V>(table + i, n);
      const V sine = LoadUpTo<V>(table + half + i, n) * direction;
      const V a = LoadUpTo<V>(x + i, n), b = LoadUpTo<V>(x + half + i, n);
      StoreUpTo(x + i, a * cosine - b * sine, n);
      StoreUpTo(x + half + i, b * cosine + a * sine, n);
    }
  }
}

// up null for ones, here and below.
ATOLL_KERNEL(GatedRun, (Activation kind, const float* gate, const float* up, float* y, int64_t n),
             (kind, gate, up, y, n)) {
  for (int64_t i = 0; i < n; i += kLanes) {
    V active = simd::Activate(kind, LoadUpTo<V>(gate + i, n - i));
    if (up != nullptr) active *= LoadUpTo<V>(up + i, n - i);
    StoreUpTo(y + i, active, n - i);
  }
}

// SiLU's own, as its value and derivative share the exponential.
ATOLL_KERNEL(SwigluBackwardRun,
             (const float* gate, const float* up, const float* dy, float* dgate, float* dup,
              int64_t n),
             (gate, up, dy, dgate, dup, n)) {
  for (int64_t i = 0; i < n; i += kLanes) {
    const V g = LoadUpTo<V>(gate + i, n - i), u = LoadUpTo<V>(up + i, n - i);
    const V d = LoadUpTo<V>(dy + i, n - i);
    const V s = simd::Sigmoid(g);
    StoreUpTo(dgate + i, d * u * s * (1.0f + g * (1.0f - s)), n - i);
    StoreUpTo(dup + i, d * g * s, n - i);
  }
}

ATOLL_KERNEL(GatedBackwardRun,
             (Activation kind, const float* gate, const float* up, const float* dy, float* dgate,
              float* dup, int64_t n),
             (kind, gate, up, dy, dgate, dup, n)) {
  for (int64_t i = 0; i < n; i += kLanes) {
    const V g = LoadUpTo<V>(gate + i, n - i), d = LoadUpTo<V>(dy + i, n - i);
    const V dactive = up == nullptr ? d : d * LoadUpTo<V>(up + i, n - i);
    StoreUpTo(dgate + i, dactive * simd::ActivateDerivative(kind, g), n - i);
    if (dup != nullptr) StoreUpTo(dup + i, d * simd::Activate(kind, g), n - i);
  }
}

ATOLL_KERNEL(SoftcapRun, (const float* x, float* y, float cap, int64_t n), (x, y, cap, n)) {
  for (int64_t i = 0; i < n; i += kLanes) {
    StoreUpTo(y + i, cap * simd::Tanh(LoadUpTo<V>(x + i, n - i) / cap), n - i);
  }
}

ATOLL_KERNEL(SoftcapBackwardRun, (const float* x, const float* dy, float* dx, float cap, int64_t n),
             (x, dy, dx, cap, n)) {
  for (int64_t i = 0; i < n; i += kLanes) {
    const V t = simd::Tanh(LoadUpTo<V>(x + i, n - i) / cap);
    StoreUpTo(dx + i, LoadUpTo<V>(dy + i, n - i) * (1.0f - t * t), n - i);
  }
}

// Up to 16 elements of a run of f32 or bf16.
template <class V>
ATOLL_INLINE V LoadAs(const void* p, bool bf16, int64_t i, int64_t n) {
  if (!bf16) return LoadUpTo<V>(static_cast<const float*>(p) + i, n);
  const Bfloat16* halves = static_cast<const Bfloat16*>(p) + i;
  if (n >= kLanes) return simd::FromBfloat16<V>(halves);
  Bfloat16 lanes[kLanes] = {};
  for (int64_t lane = 0; lane < n; ++lane) lanes[lane] = halves[lane];
  return simd::FromBfloat16<V>(lanes);
}

template <class V>
ATOLL_INLINE void StoreAs(void* p, bool bf16, int64_t i, const V& v, int64_t n) {
  if (!bf16) return StoreUpTo(static_cast<float*>(p) + i, v, n);
  Bfloat16* halves = static_cast<Bfloat16*>(p) + i;
  if (n >= kLanes) return simd::ToBfloat16(halves, v);
  Bfloat16 lanes[kLanes];
  simd::ToBfloat16(lanes, v);
  for (int64_t lane = 0; lane < n; ++lane) halves[lane] = lanes[lane];
}

// out = a + alpha * b; b null for zero.
ATOLL_KERNEL(AddScaledRun,
             (const void* a, bool a_bf16, const void* b, bool b_bf16, void* out, bool out_bf16,
              float alpha, int64_t n),
             (a, a_bf16, b, b_bf16, out, out_bf16, alpha, n)) {
  for (int64_t i = 0; i < n; i += kLanes) {
    V sum = LoadAs<V>(a, a_bf16, i, n - i);
    if (b != nullptr) sum += LoadAs<V>(b, b_bf16, i, n - i) * alpha;
    StoreAs(out, out_bf16, i, sum, n - i);
  }
}

ATOLL_KERNEL(ScaleRun, (float* x, float factor, int64_t n), (x, factor, n)) {
  for (int64_t i = 0; i < n; i += kLanes)
    StoreUpTo(x + i, LoadUpTo<V>(x + i, n - i) * factor, n - i);
}

// Blocks of one row; `place` is the first one's among all scales.
ATOLL_KERNEL(DecodeBlocks,
             (WeightCode code, const uint8_t* codes, const uint8_t* scales, const float* coarse,
              int64_t place, float* y, int64_t blocks),
             (code, codes, scales, coarse, place, y, blocks)) {
  using Eight = simd::F8;
  Eight low, high;
  std::memcpy(&low, kNf4Numbers, sizeof(low));
  std::memcpy(&high, kNf4Numbers + 8, sizeof(high));
  for (int64_t b = 0; b < blocks; ++b, y += kWeightBlock) {
    const float spread = coarse[1 + (place + b) / kScaleBlock] * kScaleNumbers[scales[b]];
    const float scale = coarse[0] + spread;
    const uint8_t* const from = codes + GetCodeBytes(code, b * kWeightBlock);
    if (code == WeightCode::kInt8) {
      for (int64_t i = 0; i < kWeightBlock; ++i) {
        y[i] = static_cast<float>(static_cast<int8_t>(from[i])) / kInt8Largest * scale;
      }
      continue;
    }
    const Eight lows = low * scale, highs = high * scale;
    for (int64_t i = 0; i < kWeightBlock; i += 8) {
      uint32_t eight;
      std::memcpy(&eight, from + i / 2, sizeof(eight));
      const Eight found = simd::Lookup(lows, highs, eight);
      std::memcpy(y + i, &found, sizeof(found));
    }
  }
}

void* Element(const Tensor& x, int64_t row, int64_t col) {
  return static_cast<char*>(x.data) + (row * x.stride + col) * GetElementSize(x.dtype);
}

bool IsBfloat16(const Tensor& x) { return x.dtype == DType::kBfloat16; }

}  // namespace

void CpuBackend::Run(Stream&, const Rope& op) {
  op.Check();
  const int64_t head_dim = op.table.cols;
  ForRowBlocks(pool_, op.x.rows, op.x.cols, [&](int64_t begin, int64_t end) {
    for (int64_t n = begin; n < end; ++n) {
      RopeRow(Pointer(op.x, n),
              Pointer(op.table, op.position_offset + PositionInDocument(op.starts, n, op.seq_len)),
              op.x.cols / head_dim, head_dim / 2, op.inverse ? -1.0f : 1.0f);
    }
  });
}

void CpuBackend::Run(Stream&, const GatedForward& op) {
  op.Check();
  const bool flat = op.gate.contiguous() && op.up.contiguous() && op.y.contiguous();
  ForRuns(pool_, op.y.rows, op.y.cols, flat, [&](int64_t row, int64_t col, int64_t n) {
    GatedRun(op.kind, Pointer(op.gate, row, col), PointerOrNull(op.up, row, col),
             Pointer(op.y, row, col), n);
  });
}

void CpuBackend::Run(Stream&, const GatedBackward& op) {
  op.Check();
  const bool flat = op.gate.contiguous() && op.up.contiguous() && op.dy.contiguous() &&
                    op.dgate.contiguous() && op.dup.contiguous();
  ForRuns(pool_, op.dy.rows, op.dy.cols, flat, [&](int64_t row, int64_t col, int64_t n) {
    const float *gate = Pointer(op.gate, row, col), *up = PointerOrNull(op.up, row, col);
    const float* dy = Pointer(op.dy, row, col);
    float *dgate = Pointer(op.dgate, row, col), *dup = PointerOrNull(op.dup, row, col);
    if (op.kind == Activation::kSilu && up != nullptr) {
      SwigluBackwardRun(gate, up, dy, dgate, dup, n);
    } else {
      GatedBackwardRun(op.kind, gate, up, dy, dgate, dup, n);
    }
  });
}

void CpuBackend::Run(Stream&, const SoftcapForward& op) {
  op.Check();
  const bool flat = op.x.contiguous() && op.y.contiguous();
  ForRuns(pool_, op.y.rows, op.y.cols, flat, [&](int64_t row, int64_t col, int64_t n) {
    SoftcapRun(Pointer(op.x, row, col), Pointer(op.y, row, col), op.cap, n);
  });
}

void CpuBackend::Run(Stream&, const SoftcapBackward& op) {
  op.Check();
  const bool flat = op.x.contiguous() && op.dy.contiguous() && op.dx.contiguous();
  ForRuns(pool_, op.dy.rows, op.dy.cols, flat, [&](int64_t row, int64_t col, int64_t n) {
    SoftcapBackwardRun(Pointer(op.x, row, col), Pointer(op.dy, row, col), Pointer(op.dx, row, col),
                       op.cap, n);
  });
}

void CpuBackend::Run(Stream&, const AddScaled& op) {
  op.Check();
  const bool flat = op.a.contiguous() && op.b.contiguous() && op.out.contiguous();
  ForRuns(pool_, op.out.rows, op.out.cols, flat, [&](int64_t row, int64_t col, int64_t n) {
    AddScaledRun(Element(op.a, row, col), IsBfloat16(op.a), Element(op.b, row, col),
                 IsBfloat16(op.b), Element(op.out, row, col), IsBfloat16(op.out), op.alpha, n);
  });
}

void CpuBackend::Run(Stream&, const Scale& op) {
  op.Check();
  ForRuns(pool_, op.x.rows, op.x.cols, op.x.contiguous(), [&](int64_t row, int64_t col, int64_t n) {
    ScaleRun(Pointer(op.x, row, col), op.factor, n);
  });
}

void CpuBackend::Run(Stream&, const Convert& op) {
  op.Check();
  const bool flat = op.from.contiguous() && op.to.contiguous();
  ForRuns(pool_, op.to.rows, op.to.cols, flat, [&](int64_t row, int64_t col, int64_t n) {
    if (op.from.dtype == op.to.dtype) {
      std::memmove(Element(op.to, row, col), Element(op.from, row, col),
                   n * GetElementSize(op.to.dtype));
    } else {
      AddScaledRun(Element(op.from, row, col), IsBfloat16(op.from), nullptr, false,
                   Element(op.to, row, col), IsBfloat16(op.to), 0.0f, n);
    }
  });
}

void CpuBackend::Run(Stream&, const DecodeWeights& op) {
  op.Check();
  const auto* codes = reinterpret_cast<const uint8_t*>(op.codes.as<int32_t>());
  const auto* scales = reinterpret_cast<const uint8_t*>(op.scales.as<int32_t>());
  const int64_t cols = op.y.cols, blocks = cols / kWeightBlock;
  ForRowBlocks(pool_, op.y.rows, cols, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      DecodeBlocks(op.code, codes + GetCodeBytes(op.code, row * cols), scales + row * blocks,
                   op.coarse.f32(), op.first_scale + row * op.scale_step, Pointer(op.y, row),
                   blocks);
    }
  });
}

}  // namespace atl
