// RMSNorm and LayerNorm.

#include <cmath>

#include "kernels/testing/reference/reference_backend.h"

namespace atl {

namespace {

// Calls function(row, part, first column of the part).
template <typename Function>
void ForParts(const Tensor& x, int64_t width, const Function& function) {
  for (int64_t n = 0; n < x.rows; ++n) {
    for (int64_t first = 0; first < x.cols; first += width) function(n, first / width, first);
  }
}

void RmsForward(const NormForward& op) {
  const int64_t channels = op.w.cols;
  ForParts(op.x, channels, [&](int64_t n, int64_t part, int64_t first) {
    double squares = 0;
    for (int64_t c = first; c < first + channels; ++c) {
      squares += double{At(op.x, n, c)} * At(op.x, n, c);
    }
    const double rstd = 1 / std::sqrt(squares / channels + op.eps);
    At(op.rstd, part, n) = rstd;
    for (int64_t c = 0; c < channels; ++c) {
      At(op.y, n, first + c) = At(op.x, n, first + c) * rstd * At(op.w, c);
    }
  });
}

// With xh = x * rstd and g = dy * w: dx = rstd * (g - xh * mean(g * xh)).
void RmsBackwardInput(const NormBackwardInput& op) {
  const int64_t channels = op.w.cols;
  ForParts(op.x, channels, [&](int64_t n, int64_t part, int64_t first) {
    const double rstd = At(op.rstd, part, n);
    double dot = 0;
    for (int64_t c = 0; c < channels; ++c) {
      dot += double{At(op.dy, n, first + c)} * At(op.w, c) * At(op.x, n, first + c) * rstd;
    }
    for (int64_t c = 0; c < channels; ++c) {
      const double g = double{At(op.dy, n, first + c)} * At(op.w, c);
      const double dx = rstd * (g - At(op.x, n, first + c) * rstd * dot / channels);
      At(op.dx, n, first + c) = dx + AtOrZero(op.add, n, first + c);
    }
  });
}

void RmsBackwardWeight(const NormBackwardWeight& op) {
  for (int64_t c = 0; c < op.dw.cols; ++c) {
    double sum = 0;
    ForParts(op.x, op.dw.cols, [&](int64_t n, int64_t part, int64_t first) {
      sum += double{At(op.dy, n, first + c)} * At(op.x, n, first + c) * At(op.rstd, part, n);
    });
    At(op.dw, c) += sum;
  }
}

void LayerForward(const NormForward& op) {
  const int64_t channels = op.x.cols;
  for (int64_t n = 0; n < op.x.rows; ++n) {
    double mean = 0, variance = 0;
    for (int64_t c = 0; c < channels; ++c) mean += At(op.x, n, c);
    mean /= channels;
    for (int64_t c = 0; c < channels; ++c) variance += std::pow(At(op.x, n, c) - mean, 2);
    const double rstd = 1 / std::sqrt(variance / channels + op.eps);
    At(op.mean, n) = mean;
    At(op.rstd, n) = rstd;
    for (int64_t c = 0; c < channels; ++c) {
      const double normal = (At(op.x, n, c) - mean) * rstd;
      At(op.y, n, c) = normal * At(op.w, c) + At(op.b, c);
    }
  }
}

// With xh = (x - mean) * rstd and g = dy * w: dx = rstd * (g - mean(g) - xh * mean(g * xh)).
void LayerBackwardInput(const NormBackwardInput& op) {
  const int64_t channels = op.x.cols;
  for (int64_t n = 0; n < op.x.rows; ++n) {
    const double mean = At(op.mean, n), rstd = At(op.rstd, n);
    double sum = 0, dot = 0;
    for (int64_t c = 0; c < channels; ++c) {
      const double g = double{At(op.dy, n, c)} * At(op.w, c);
      sum += g;
      dot += g * (At(op.x, n, c) - mean) * rstd;
    }
    for (int64_t c = 0; c < channels; ++c) {
      const double g = double{At(op.dy, n, c)} * At(op.w, c);
      const double normal = (At(op.x, n, c) - mean) * rstd;
      const double dx = rstd * (g - sum / channels - normal * dot / channels);
      At(op.dx, n, c) = dx + AtOrZero(op.add, n, c);
    }
  }
}

void LayerBackwardWeight(const NormBackwardWeight& op) {
  for (int64_t c = 0; c < op.x.cols; ++c) {
    double dw = 0, db = 0;
    for (int64_t n = 0; n < op.x.rows; ++n) {
      dw += double{At(op.dy, n, c)} * (At(op.x, n, c) - At(op.mean, n)) * At(op.rstd, n);
      db += At(op.dy, n, c);
    }
    At(op.dw, c) += dw;
    At(op.db, c) += db;
  }
}

}  // namespace

void ReferenceBackend::Run(Stream&, const NormForward& op) {
  op.Check();
  return op.centred() ? LayerForward(op) : RmsForward(op);
}

void ReferenceBackend::Run(Stream&, const NormBackwardInput& op) {
  op.Check();
  return op.centred() ? LayerBackwardInput(op) : RmsBackwardInput(op);
}

void ReferenceBackend::Run(Stream&, const NormBackwardWeight& op, Workspace) {
  op.Check();
  return op.centred() ? LayerBackwardWeight(op) : RmsBackwardWeight(op);
}

}  // namespace atl
