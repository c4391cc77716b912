// Activations and their derivatives on vectors.

#ifndef ATOLL_KERNELS_CPU_ACTIVATION_H_
#define ATOLL_KERNELS_CPU_ACTIVATION_H_

#include "kernels/ops.h"
#include "kernels/simd.h"

namespace atl::simd {

inline constexpr float kGeluCubic = 0.044715f;
inline constexpr float kSqrt2OverPi = 0.7978845608f;
inline constexpr float kSqrtHalf = 0.7071067812f;
inline constexpr float kNormalDensity = 0.3989422804f;  // 1 / sqrt(2 pi)

// 0.5 (1 + tanh(u)) is sigmoid(2 u), so both GELUs need one exponential.
template <class V>
ATOLL_INLINE V Activate(Activation kind, const V& x) {
  switch (kind) {
    case Activation::kGeluTanh:
      return x * Sigmoid(2 * kSqrt2OverPi * (x + kGeluCubic * x * x * x));
    case Activation::kGeluErf:
      return 0.5f * x * (1.0f + Erf(x * kSqrtHalf));
    case Activation::kSilu:
      return x * Sigmoid(x);
    case Activation::kRelu:
      return Select(x > 0.0f, x, Splat<V>(0.0f));
    case Activation::kNone:
      break;
  }
  return x;
}

template <class V>
ATOLL_INLINE V ActivateDerivative(Activation kind, const V& x) {
  switch (kind) {
    case Activation::kGeluTanh: {
      const V s = Sigmoid(2 * kSqrt2OverPi * (x + kGeluCubic * x * x * x));
      const V slope = kSqrt2OverPi * (1.0f + 3 * kGeluCubic * x * x);
      return s + 2.0f * x * s * (1.0f - s) * slope;
    }
    case Activation::kGeluErf:
      return 0.5f * (1.0f + Erf(x * kSqrtHalf)) + x * kNormalDensity * Exp(-0.5f * x * x);
    case Activation::kSilu: {
      const V s = Sigmoid(x);
      return s * (1.0f + x * (1.0f - s));
    }
    case Activation::kRelu:
      return Select(x > 0.0f, Splat<V>(1.0f), Splat<V>(0.0f));
    case Activation::kNone:
      break;
  }
  return Splat<V>(1.0f);
}

}  // namespace atl::simd

#endif  // ATOLL_KERNELS_CPU_ACTIVATION_H_
