// Activations, sums and conversions.

#include <cmath>
#include <numbers>

#include "kernels/testing/reference/reference_backend.h"

namespace atl {
namespace {

template <typename Function>
void ForEachElement(const Tensor& x, const Function& function) {
  for (int64_t row = 0; row < x.rows; ++row) {
    for (int64_t col = 0; col < x.cols; ++col) function(row, col);
  }
}

constexpr double kCubic = 0.044715;
const double kSqrt2OverPi = std::sqrt(2 / std::numbers::pi);

}  // namespace

double Activate(Activation kind, double x) {
  switch (kind) {
    case Activation::kNone:
      return x;
    case Activation::kGeluTanh:
      return 0.5 * x * (1 + std::tanh(kSqrt2OverPi * (x + kCubic * x * x * x)));
    case Activation::kGeluErf:
      return 0.5 * x * (1 + std::erf(x / std::numbers::sqrt2));
    case Activation::kSilu:
      return x * Sigmoid(x);
    case Activation::kRelu:
      return x > 0 ? x : 0;
  }
  ATOLL_CHECK(false, "no such activation");
}

double ActivateDerivative(Activation kind, double x) {
  switch (kind) {
    case Activation::kNone:
      return 1;
    case Activation::kGeluTanh: {
      const double t = std::tanh(kSqrt2OverPi * (x + kCubic * x * x * x));
      return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * kSqrt2OverPi * (1 + 3 * kCubic * x * x);
    }
    case Activation::kGeluErf: {
      const double density = std::exp(-0.5 * x * x) / std::sqrt(2 * std::numbers::pi);
      return 0.5 * (1 + std::erf(x / std::numbers::sqrt2)) + x * density;
    }
    case Activation::kSilu: {
      const double s = Sigmoid(x);
      return s + x * s * (1 - s);
    }
    case Activation::kRelu:
      return x > 0 ? 1 : 0;
  }
  ATOLL_CHECK(false, "no such activation");
}

void ReferenceBackend::Run(Stream&, const GatedForward& op) {
  op.Check();
  ForEachElement(op.y, [&](int64_t n, int64_t c) {
    const double up = op.up.present() ? double{At(op.up, n, c)} : 1;
    At(op.y, n, c) = Activate(op.kind, At(op.gate, n, c)) * up;
  });
}

void ReferenceBackend::Run(Stream&, const GatedBackward& op) {
  op.Check();
  ForEachElement(op.dy, [&](int64_t n, int64_t c) {
    const double gate = At(op.gate, n, c), dy = At(op.dy, n, c);
    const double up = op.up.present() ? double{At(op.up, n, c)} : 1;
    At(op.dgate, n, c) = dy * up * ActivateDerivative(op.kind, gate);
    if (op.dup.present()) At(op.dup, n, c) = dy * Activate(op.kind, gate);
  });
}

void ReferenceBackend::Run(Stream&, const SoftcapForward& op) {
  op.Check();
  ForEachElement(op.y, [&](int64_t n, int64_t c) {
    At(op.y, n, c) = op.cap * std::tanh(At(op.x, n, c) / op.cap);
  });
}

void ReferenceBackend::Run(Stream&, const SoftcapBackward& op) {
  op.Check();
  ForEachElement(op.dy, [&](int64_t n, int64_t c) {
    const double t = std::tanh(At(op.x, n, c) / op.cap);
    At(op.dx, n, c) = At(op.dy, n, c) * (1 - t * t);
  });
}

void ReferenceBackend::Run(Stream&, const AddScaled& op) {
  op.Check();
  ForEachElement(op.out, [&](int64_t n, int64_t c) {
    At(op.out, n, c) = At(op.a, n, c) + op.alpha * At(op.b, n, c);
  });
}

void ReferenceBackend::Run(Stream&, const Scale& op) {
  op.Check();
  ForEachElement(op.x, [&](int64_t n, int64_t c) { At(op.x, n, c) = At(op.x, n, c) * op.factor; });
}

void ReferenceBackend::Run(Stream&, const Convert& op) {
  op.Check();
  ForEachElement(op.to, [&](int64_t n, int64_t c) {
    if (op.to.dtype == DType::kInt32) {
      op.to.as<int32_t>()[n * op.to.stride + c] = op.from.as<int32_t>()[n * op.from.stride + c];
    } else {
      At(op.to, n, c) = At(op.from, n, c);
    }
  });
}

void ReferenceBackend::Run(Stream&, const DecodeWeights& op) {
  op.Check();
  const auto* codes = reinterpret_cast<const uint8_t*>(op.codes.as<int32_t>());
  const auto* scales = reinterpret_cast<const uint8_t*>(op.scales.as<int32_t>());
  ForEachElement(op.y, [&](int64_t row, int64_t col) {
    const int64_t at = row * op.y.cols + col, block = col / kWeightBlock;
    const int64_t place = op.first_scale + row * op.scale_step + block;
    const float group = op.coarse.f32()[1 + place / kScaleBlock];
    const float spread = group * kScaleNumbers[scales[at / kWeightBlock]];
    const float scale = op.coarse.f32()[0] + spread;
    float number = 0;
    switch (op.code) {
      case WeightCode::kNf4:
        number = kNf4Numbers[codes[at / 2] >> (at % 2 == 0 ? 0 : 4) & 15];
        break;
      case WeightCode::kInt8:
        number = static_cast<float>(static_cast<int8_t>(codes[at])) / kInt8Largest;
        break;
    }
    At(op.y, row, col) = number * scale;
  });
}

}  // namespace atl
