// Loss, gradient clipping and AdamW.

#include <algorithm>
#include <bit>
#include <cmath>

#include "kernels/reference/reference_backend.h"

namespace atl {

void ReferenceBackend::Run(Stream&, const CrossEntropy& op, Workspace) {
  op.Check();
  double loss = 0, counted = 0;
  for (int64_t n = 0; n < op.logits.rows; ++n) {
    const int32_t target = op.targets.as<int32_t>()[n];
    double largest = At(op.logits, n, 0), sum = 0;
    for (int64_t v = 0; v < op.logits.cols; ++v) {
      largest = std::max(largest, double{At(op.logits, n, v)});
    }
    for (int64_t v = 0; v < op.logits.cols; ++v) sum += std::exp(At(op.logits, n, v) - largest);
    const double lse = largest + std::log(sum);
    const bool ignored = target == op.ignore_index;
    if (!ignored) {
      loss += lse - At(op.logits, n, target);
      counted += 1;
    }
    if (!op.dlogits.present()) continue;
    for (int64_t v = 0; v < op.logits.cols; ++v) {
      const double p = std::exp(At(op.logits, n, v) - lse);
      const double gradient = (p - (v == target ? 1.0 : 0.0)) * op.grad_scale;
      At(op.dlogits, n, v) = ignored ? 0.0f : static_cast<float>(gradient);
    }
  }
  At(op.totals, 0) += static_cast<float>(loss);
  At(op.totals, 1) += static_cast<float>(counted);
}

void ReferenceBackend::Run(Stream&, const AdamW& op) {
  op.Check();
  const double correction1 = 1 - std::pow(op.beta1, static_cast<double>(op.step));
  const double correction2 = 1 - std::pow(op.beta2, static_cast<double>(op.step));
  const float scale = op.grad_scale.present() ? At(op.grad_scale, 0) : 1.0f;
  float *param = op.param.f32(), *grad = op.grad.f32(), *m = op.m.f32(), *v = op.v.f32();
  for (int64_t i = 0; i < op.param.size(); ++i) {
    const double g = double{grad[i]} * scale;
    const double first = op.beta1 * m[i] + (1.0 - op.beta1) * g;
    const double second = op.beta2 * v[i] + (1.0 - op.beta2) * g * g;
    const double step = first / correction1 / (std::sqrt(second / correction2) + op.eps);
    const double decayed = param[i] * (1 - op.lr * op.weight_decay);
    m[i] = static_cast<float>(first);
    v[i] = static_cast<float>(second);
    param[i] = static_cast<float>(decayed - op.lr * step);
    if (op.zero_grad) grad[i] = 0;
  }
  if (!op.param_copy.present()) return;
  Stream stream;
  Run(stream, Convert{.from = op.param, .to = op.param_copy});
}

void ReferenceBackend::Run(Stream&, const SumOfSquares& op, Workspace) {
  op.Check();
  double sum = op.accumulate ? At(op.out, 0) : 0.0;
  for (int64_t i = 0; i < op.x.size(); ++i) sum += double{op.x.f32()[i]} * op.x.f32()[i];
  At(op.out, 0) = static_cast<float>(sum);
}

}  // namespace atl
