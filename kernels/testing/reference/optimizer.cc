// Loss, gradient clipping and optimizers.

#include <algorithm>
#include <cmath>

#include "kernels/testing/reference/reference_backend.h"

namespace atl {

namespace {

double FindRowMax(const Tensor& x, int64_t row) {
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
    At(op.max, n) = FindRowMax(op.logits, n);
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
    double before = 0;
    for (int64_t c = 0; c < std::min(target, op.logits.cols); ++c) {
      before += double{At(op.logits, n, c)} == largest ? 1 : 0;
    }
    At(op.sums, 2, n) = before;
  }
}

void ReferenceBackend::Run(Stream&, const CrossEntropy& op, Workspace) {
  op.Check();
  const bool parted = op.sums.present();
  const int64_t classes = op.logits.cols;
  double loss = 0, counted = 0;
  for (int64_t n = 0; n < op.logits.rows; ++n) {
    const bool ignored = op.targets.as<int32_t>()[n] == op.ignore_index;
    const int64_t target = op.targets.as<int32_t>()[n] - op.first_class;
    const double largest = parted ? double{At(op.max, n)} : FindRowMax(op.logits, n);
    const double log_sum =
        std::log(parted ? double{At(op.sums, 0, n)} : SumOfExponentials(op.logits, n, largest));
    const double lse = largest + log_sum;
    if (!ignored) {
      const double own =
          log_sum - (parted ? At(op.sums, 1, n) : At(op.logits, n, target) - largest);
      double all = 0;
      for (int64_t v = 0; op.smoothing > 0 && v < classes; ++v) all += lse - At(op.logits, n, v);
      loss += (1 - op.smoothing) * own + op.smoothing * all / static_cast<double>(classes);
      counted += 1;
    }
    if (!op.dlogits.present()) continue;
    for (int64_t v = 0; v < op.logits.cols; ++v) {
      const double p = std::exp(At(op.logits, n, v) - lse);
      const double share = op.smoothing / static_cast<double>(classes);
      const double wanted = (v == target ? 1.0 - op.smoothing : 0.0) + share;
      const double gradient = (p - wanted) * op.grad_scale;
      At(op.dlogits, n, v) = ignored ? 0.0f : gradient;
    }
  }
  At(op.totals, 0) += loss;
  At(op.totals, 1) += counted;
}

namespace {

double GetGradScale(const Tensor& grad_scale) {
  return grad_scale.present() ? double{At(grad_scale, 0)} : 1.0;
}

// One element's new moments, and where they point without their bias.
struct AdamMoments {
  double first, second, direction;
};

// The update of AdamW or LAMB.
class AdamRule {
 public:
  explicit AdamRule(const AdamStep& op)
      : op_(op),
        scale_(GetGradScale(op.grad_scale)),
        correction1_(1 - std::pow(op.beta1, static_cast<double>(op.step))),
        correction2_(1 - std::pow(op.beta2, static_cast<double>(op.step))) {}

  AdamMoments operator()(int64_t i) const {
    const double g = At(op_.grad, i) * scale_;
    const double first = op_.beta1 * At(op_.m, i) + (1.0 - op_.beta1) * g;
    const double second = op_.beta2 * At(op_.v, i) + (1.0 - op_.beta2) * g * g;
    return {first, second, first / correction1_ / (std::sqrt(second / correction2_) + op_.eps)};
  }

 private:
  const AdamStep& op_;
  const double scale_, correction1_, correction2_;
};

}  // namespace

void ReferenceBackend::Run(Stream& stream, const MomentumStep& op) {
  op.Check();
  for (int64_t i = 0; i < op.grad.size(); ++i) {
    double g = At(op.grad, i) * GetGradScale(op.grad_scale);
    if (op.param.present()) g += op.weight_decay * At(op.param, i);
    if (op.v.present()) {
      const double v = op.alpha * At(op.v, i) + (1 - op.alpha) * g * g;
      At(op.v, i) = v;
      g /= std::sqrt(v) + op.eps;
    }
    const double m = op.momentum * At(op.m, i) + g;
    At(op.m, i) = m;
    if (op.param.present()) At(op.param, i) = At(op.param, i) - op.lr * m;
    if (op.zero_grad) At(op.grad, i) = 0;
  }
  if (op.param_copy.present()) Run(stream, Convert{.from = op.param, .to = op.param_copy});
}

void ReferenceBackend::Run(Stream& stream, const AdamStep& op) {
  op.Check();
  const AdamRule rule(op);
  for (int64_t i = 0; i < op.param.size(); ++i) {
    const AdamMoments moments = rule(i);
    const double param = At(op.param, i);
    At(op.m, i) = moments.first;
    At(op.v, i) = moments.second;
    At(op.param, i) = op.lamb ? param - op.lr * (moments.direction + op.weight_decay * param)
                              : param * (1 - op.lr * op.weight_decay) - op.lr * moments.direction;
    if (op.zero_grad) At(op.grad, i) = 0;
  }
  if (op.param_copy.present()) Run(stream, Convert{.from = op.param, .to = op.param_copy});
}

void ReferenceBackend::Run(Stream&, const LambNorms& op, Workspace) {
  op.Check();
  const AdamRule rule(op.step);
  double of_params = At(op.sums, 0), of_directions = At(op.sums, 1);
  for (int64_t i = 0; i < op.step.grad.size(); ++i) {
    const double param = At(op.step.param, i);
    const double direction = rule(i).direction + op.step.weight_decay * param;
    of_params += param * param;
    of_directions += direction * direction;
  }
  At(op.sums, 0) = of_params;
  At(op.sums, 1) = of_directions;
}

void ReferenceBackend::Run(Stream&, const Normalize& op) {
  op.Check();
  const double norm = std::sqrt(double{At(op.sum_of_squares, 0)}) + 1e-7;
  for (int64_t i = 0; i < op.x.size(); ++i) At(op.y, i) = At(op.x, i) / norm;
}

void ReferenceBackend::Run(Stream&, const SumOfSquares& op, Workspace) {
  op.Check();
  double sum = op.accumulate ? At(op.out, 0) : 0.0;
  for (int64_t i = 0; i < op.x.size(); ++i) sum += double{At(op.x, i)} * At(op.x, i);
  At(op.out, 0) = sum;
}

}  // namespace atl
