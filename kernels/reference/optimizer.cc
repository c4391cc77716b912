// Loss, gradient clipping and AdamW.

#include <algorithm>
#include <bit>
#include <cmath>

#include "kernels/reference/reference_backend.h"

namespace atl {

namespace {

double LargestOfRow(const Tensor& x, int64_t row) {
  double largest = At(x, row, 0);
  for (int64_t col = 0; col < x.cols; ++col) largest = std::max(largest, double{At(x, row, col)});
  return largest;
}

double SumOfExponentials(const Tensor& x, int64_t row, double less) {
  double sum = 0;
  for (int64_t col = 0; col < x.cols; ++col) sum += std::exp(At(x, row, col) - less);
  return sum;
}

}  // namespace

void ReferenceBackend::Run(Stream&, const CrossEntropyMax& op) {
  op.Check();
  for (int64_t n = 0; n < op.logits.rows; ++n) {
    At(op.max, n) = LargestOfRow(op.logits, n);
  }
}

void ReferenceBackend::Run(Stream&, const CrossEntropySums& op) {
  op.Check();
  for (int64_t n = 0; n < op.logits.rows; ++n) {
    const double largest = At(op.max, n);
    const int64_t target = op.targets.as<int32_t>()[n] - op.first_class;
    const bool here = target >= 0 && target < op.logits.cols;
    At(op.sums, 0, n) = SumOfExponentials(op.logits, n, largest);
    At(op.sums, 1, n) = here ? At(op.logits, n, target) - largest : 0.0f;
  }
}

void ReferenceBackend::Run(Stream&, const CrossEntropy& op, Workspace) {
  op.Check();
  const bool parted = op.sums.present();
  double loss = 0, counted = 0;
  for (int64_t n = 0; n < op.logits.rows; ++n) {
    const bool ignored = op.targets.as<int32_t>()[n] == op.ignore_index;
    const int64_t target = op.targets.as<int32_t>()[n] - op.first_class;
    const double largest = parted ? double{At(op.max, n)} : LargestOfRow(op.logits, n);
    const double log_sum =
        std::log(parted ? double{At(op.sums, 0, n)} : SumOfExponentials(op.logits, n, largest));
    const double lse = largest + log_sum;
    if (!ignored) {
      loss += log_sum - (parted ? At(op.sums, 1, n) : At(op.logits, n, target) - largest);
      counted += 1;
    }
    if (!op.dlogits.present()) continue;
    for (int64_t v = 0; v < op.logits.cols; ++v) {
      const double p = std::exp(At(op.logits, n, v) - lse);
      const double gradient = (p - (v == target ? 1.0 : 0.0)) * op.grad_scale;
      At(op.dlogits, n, v) = ignored ? 0.0f : gradient;
    }
  }
  At(op.totals, 0) += loss;
  At(op.totals, 1) += counted;
}

void ReferenceBackend::Run(Stream&, const AdamW& op) {
  op.Check();
  const double correction1 = 1 - std::pow(op.beta1, static_cast<double>(op.step));
  const double correction2 = 1 - std::pow(op.beta2, static_cast<double>(op.step));
  const double scale = op.grad_scale.present() ? double{At(op.grad_scale, 0)} : 1.0;
  for (int64_t i = 0; i < op.param.size(); ++i) {
    const double g = At(op.grad, i) * scale;
    const double first = op.beta1 * At(op.m, i) + (1.0 - op.beta1) * g;
    const double second = op.beta2 * At(op.v, i) + (1.0 - op.beta2) * g * g;
    const double step = first / correction1 / (std::sqrt(second / correction2) + op.eps);
    const double decayed = At(op.param, i) * (1 - op.lr * op.weight_decay);
    At(op.m, i) = first;
    At(op.v, i) = second;
    At(op.param, i) = decayed - op.lr * step;
    if (op.zero_grad) At(op.grad, i) = 0;
  }
  if (!op.param_copy.present()) return;
  Stream stream;
  Run(stream, Convert{.from = op.param, .to = op.param_copy});
}

void ReferenceBackend::Run(Stream&, const SumOfSquares& op, Workspace) {
  op.Check();
  double sum = op.accumulate ? At(op.out, 0) : 0.0;
  for (int64_t i = 0; i < op.x.size(); ++i) sum += double{At(op.x, i)} * At(op.x, i);
  At(op.out, 0) = sum;
}

}  // namespace atl
