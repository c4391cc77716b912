// Operations on images.

#include <cmath>
#include <vector>

#include "kernels/testing/reference/reference_backend.h"

namespace atl {
namespace {

// Calls visit(output row, input row, tap) for every tap of every window that lies on its image.
template <typename Visit>
void ForTaps(const WindowShape& s, const Visit& visit) {
  for (int64_t image = 0; image < s.batch; ++image) {
    for (int64_t oy = 0; oy < s.out_height(); ++oy) {
      for (int64_t ox = 0; ox < s.out_width(); ++ox) {
        const int64_t out = (image * s.out_height() + oy) * s.out_width() + ox;
        for (int64_t tap = 0; tap < s.kernel * s.kernel; ++tap) {
          const int64_t y = oy * s.stride + tap / s.kernel - s.pad;
          const int64_t x = ox * s.stride + tap % s.kernel - s.pad;
          if (y < 0 || y >= s.in_height || x < 0 || x >= s.in_width) continue;
          visit(out, (image * s.in_height + y) * s.in_width + x, tap);
        }
      }
    }
  }
}

// Calls visit(output row, output channel, input row, input channel, column of the weights).
template <typename Visit>
void ForProducts(const ConvShape& s, const Visit& visit) {
  const int64_t in = s.in_channels / s.groups, out = s.out_channels / s.groups;
  const int64_t taps = s.window.kernel * s.window.kernel;
  ForTaps(s.window, [&](int64_t out_row, int64_t in_row, int64_t tap) {
    for (int64_t o = 0; o < s.out_channels; ++o) {
      for (int64_t i = 0; i < in; ++i) visit(out_row, o, in_row, o / out * in + i, i * taps + tap);
    }
  });
}

// Sums in double, stored once.
class Sums {
 public:
  explicit Sums(const Tensor& x) : x_(x), sums_(static_cast<size_t>(x.size())) {}
  double& operator()(int64_t row, int64_t col) {
    return sums_[static_cast<size_t>(row * x_.cols + col)];
  }
  void Store(const Tensor& add = {}) {
    for (int64_t row = 0; row < x_.rows; ++row) {
      for (int64_t col = 0; col < x_.cols; ++col) {
        At(x_, row, col) = (*this)(row, col) + AtOrZero(add, row, col);
      }
    }
  }

 private:
  const Tensor& x_;
  std::vector<double> sums_;
};

double VarianceFromRstd(double rstd, double eps) { return 1 / (rstd * rstd) - eps; }

}  // namespace

void ReferenceBackend::Run(Stream&, const PixelsForward& op) {
  op.Check();
  for (int64_t n = 0; n < op.y.rows; ++n) {
    for (int64_t c = 0; c < op.y.cols; ++c) {
      const auto channel = static_cast<size_t>(c);
      const double pixel = op.pixels.as<int32_t>()[n * op.y.cols + c];
      At(op.y, n, c) = pixel * op.scale[channel] + op.shift[channel];
    }
  }
}

void ReferenceBackend::Run(Stream&, const ConvForward& op, Workspace) {
  op.Check();
  Sums y(op.y);
  ForProducts(op.shape, [&](int64_t out, int64_t o, int64_t in, int64_t i, int64_t w) {
    y(out, o) += double{At(op.x, in, i)} * At(op.w, o, w);
  });
  y.Store();
}

void ReferenceBackend::Run(Stream&, const ConvBackwardInput& op, Workspace) {
  op.Check();
  Sums dx(op.dx);
  ForProducts(op.shape, [&](int64_t out, int64_t o, int64_t in, int64_t i, int64_t w) {
    dx(in, i) += double{At(op.dy, out, o)} * At(op.w, o, w);
  });
  dx.Store();
}

void ReferenceBackend::Run(Stream&, const ConvBackwardWeight& op, Workspace) {
  op.Check();
  Sums dw(op.dw);
  ForProducts(op.shape, [&](int64_t out, int64_t o, int64_t in, int64_t i, int64_t w) {
    dw(o, w) += double{At(op.dy, out, o)} * At(op.x, in, i);
  });
  dw.Store(op.dw);
}

void ReferenceBackend::Run(Stream&, const BatchNormForward& op, Workspace) {
  op.Check();
  const int64_t rows = op.x.rows;
  for (int64_t c = 0; c < op.x.cols; ++c) {
    double mean = 0, variance = 0;
    if (op.running_mean.present()) {
      mean = At(op.running_mean, c);
      // A pseudo-gradient of few bits may have made it negative.
      variance = std::max(0.0, double{At(op.running_variance, c)});
    } else {
      for (int64_t n = 0; n < rows; ++n) mean += At(op.x, n, c);
      mean /= static_cast<double>(rows);
      for (int64_t n = 0; n < rows; ++n) variance += std::pow(At(op.x, n, c) - mean, 2);
      variance /= static_cast<double>(rows);
    }
    const double rstd = 1 / std::sqrt(variance + op.eps);
    if (!op.running_mean.present()) {
      At(op.mean, c) = mean;
      At(op.rstd, c) = rstd;
    }
    for (int64_t n = 0; n < rows; ++n) {
      const double normal = (At(op.x, n, c) - mean) * rstd * At(op.w, c) + At(op.b, c);
      At(op.y, n, c) = Activate(op.activation, normal + AtOrZero(op.add, n, c));
    }
  }
}

// With xh = (x - mean) * rstd: dx = w * rstd * (dz - mean(dz) - xh * mean(dz * xh)).
void ReferenceBackend::Run(Stream&, const BatchNormBackwardInput& op, Workspace) {
  op.Check();
  const int64_t rows = op.x.rows;
  std::vector<double> dz(static_cast<size_t>(rows));
  for (int64_t c = 0; c < op.x.cols; ++c) {
    const double mean = At(op.mean, c), rstd = At(op.rstd, c), w = At(op.w, c);
    double sum = 0, dot = 0;
    for (int64_t n = 0; n < rows; ++n) {
      const double normal = (At(op.x, n, c) - mean) * rstd;
      const double z = normal * w + At(op.b, c) + AtOrZero(op.add, n, c);
      double& slope = dz[static_cast<size_t>(n)];
      slope = At(op.dy, n, c) * ActivateDerivative(op.activation, z);
      sum += slope;
      dot += slope * normal;
    }
    At(op.sums, 0, c) = sum;
    At(op.sums, 1, c) = dot;
    const auto count = static_cast<double>(rows);
    for (int64_t n = 0; n < rows; ++n) {
      const double slope = dz[static_cast<size_t>(n)];
      const double normal = (At(op.x, n, c) - mean) * rstd;
      if (op.dadd.present()) At(op.dadd, n, c) = slope;
      At(op.dx, n, c) = w * rstd * (slope - sum / count - normal * dot / count);
    }
  }
}

void ReferenceBackend::Run(Stream&, const BatchNormBackwardWeight& op) {
  op.Check();
  const double unbiased =
      op.rows > 1 ? static_cast<double>(op.rows) / static_cast<double>(op.rows - 1) : 1;
  for (int64_t c = 0; c < op.sums.cols; ++c) {
    At(op.db, c) += At(op.sums, 0, c);
    At(op.dw, c) += At(op.sums, 1, c);
    At(op.dmean, c) += At(op.mean, c) * static_cast<double>(op.samples);
    At(op.dvariance, c) +=
        VarianceFromRstd(At(op.rstd, c), op.eps) * unbiased * static_cast<double>(op.samples);
  }
}

void ReferenceBackend::Run(Stream&, const RunningMean& op) {
  op.Check();
  for (int64_t i = 0; i < op.running.cols; ++i) {
    const double now = At(op.sums, i) / op.samples;
    const double running = At(op.running, i);
    At(op.running, i) = running + op.momentum * (now - running);
    if (op.zero_sums) At(op.sums, i) = 0;
    if (op.param_copy.present()) At(op.param_copy, i) = At(op.running, i);
  }
}

namespace {

// Where the largest element of each window is: the first of several. By output row and channel.
std::vector<int64_t> LargestRows(const WindowShape& shape, const Tensor& x) {
  std::vector<int64_t> rows(static_cast<size_t>(shape.out_rows() * x.cols), -1);
  ForTaps(shape, [&](int64_t out, int64_t in, int64_t) {
    for (int64_t c = 0; c < x.cols; ++c) {
      int64_t& row = rows[static_cast<size_t>(out * x.cols + c)];
      if (row < 0 || double{At(x, in, c)} > double{At(x, row, c)}) row = in;
    }
  });
  return rows;
}

}  // namespace

void ReferenceBackend::Run(Stream&, const PoolForward& op) {
  op.Check();
  const int64_t channels = op.x.cols;
  if (op.kind == PoolKind::kMax) {
    const std::vector<int64_t> rows = LargestRows(op.shape, op.x);
    for (int64_t i = 0; i < op.y.size(); ++i) {
      At(op.y, i / channels, i % channels) = At(op.x, rows[static_cast<size_t>(i)], i % channels);
    }
    return;
  }
  Sums y(op.y);
  const double share = 1 / static_cast<double>(op.shape.kernel * op.shape.kernel);
  ForTaps(op.shape, [&](int64_t out, int64_t in, int64_t) {
    for (int64_t c = 0; c < channels; ++c) y(out, c) += At(op.x, in, c) * share;
  });
  y.Store();
}

void ReferenceBackend::Run(Stream&, const PoolBackward& op) {
  op.Check();
  const int64_t channels = op.dy.cols;
  Sums dx(op.dx);
  if (op.kind == PoolKind::kMax) {
    const std::vector<int64_t> rows = LargestRows(op.shape, op.x);
    for (int64_t i = 0; i < op.dy.size(); ++i) {
      dx(rows[static_cast<size_t>(i)], i % channels) += At(op.dy, i / channels, i % channels);
    }
  } else {
    const double share = 1 / static_cast<double>(op.shape.kernel * op.shape.kernel);
    ForTaps(op.shape, [&](int64_t out, int64_t in, int64_t) {
      for (int64_t c = 0; c < channels; ++c) dx(in, c) += At(op.dy, out, c) * share;
    });
  }
  dx.Store(op.add);
}

void ReferenceBackend::Run(Stream&, const ChannelGateForward& op) {
  op.Check();
  const int64_t rows = op.x.rows / op.gate.rows;
  for (int64_t n = 0; n < op.x.rows; ++n) {
    for (int64_t c = 0; c < op.x.cols; ++c) {
      At(op.y, n, c) = At(op.x, n, c) * Sigmoid(At(op.gate, n / rows, c));
    }
  }
}

void ReferenceBackend::Run(Stream&, const ChannelGateBackward& op) {
  op.Check();
  const int64_t rows = op.x.rows / op.gate.rows;
  for (int64_t image = 0; image < op.gate.rows; ++image) {
    for (int64_t c = 0; c < op.x.cols; ++c) {
      const double s = Sigmoid(At(op.gate, image, c));
      double sum = 0;
      for (int64_t n = image * rows; n < (image + 1) * rows; ++n) {
        const double dy = At(op.dy, n, c);
        sum += dy * At(op.x, n, c);
        At(op.dx, n, c) = dy * s;
      }
      At(op.dgate, image, c) = sum * s * (1 - s);
    }
  }
}

void ReferenceBackend::Run(Stream&, const CountHits& op) {
  op.Check();
  double hits = 0;
  for (int64_t n = 0; n < op.logits.rows; ++n) {
    const int32_t target = op.targets.as<int32_t>()[n];
    if (op.sums.present()) {
      hits += target >= 0 && double{At(op.sums, 1, n)} == 0 && double{At(op.sums, 2, n)} == 0;
      continue;
    }
    if (target < 0 || target >= op.logits.cols) continue;
    bool best = true;
    for (int64_t c = 0; c < op.logits.cols; ++c) {
      const double other = At(op.logits, n, c), own = At(op.logits, n, target);
      best &= c < target ? other < own : other <= own;
    }
    hits += best ? 1 : 0;
  }
  At(op.hits, 0) += hits;
}

}  // namespace atl
