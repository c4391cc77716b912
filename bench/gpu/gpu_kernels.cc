// Our own kernels on a GPU in bf16: bytes that each must move over the time it takes, in ratio to
// what a copy of the same size achieves (or to bytes per second given as the argument).
//
//   gpu_kernels [BYTES_PER_SECOND]

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include "bench/measure.h"
#include "kernels/cuda/cuda.h"

namespace atl::bench {
namespace {

constexpr int64_t kTokens = 32768, kChannels = 4096, kVocabulary = 50304, kRounds = 5, kRepeat = 20;
constexpr DType kHalf = DType::kBfloat16;

template <typename T>
T Must(absl::StatusOr<T> value) {
  if (!value.ok()) {
    std::fprintf(stderr, "gpu_kernels: %s\n", std::string(value.status().message()).c_str());
    std::exit(1);
  }
  return *std::move(value);
}

class Bench {
 public:
  explicit Bench(double ceiling) : backend_(Must(NewCudaBackend({}))), ceiling_(ceiling) {
    stream_ = Must(backend_->NewStream());
    scratch_ = Must(backend_->Allocate(int64_t{256} << 20));
  }

  // Zeroes: the kernels' time does not depend on what they move.
  Tensor Make(DType dtype, int64_t rows, int64_t cols) {
    buffers_.push_back(Must(backend_->Allocate(rows * cols * SizeOf(dtype))));
    const Tensor x(buffers_.back().data(), dtype, rows, cols);
    backend_->Zero(*stream_, x);
    return x;
  }
  Tensor Act() { return Make(kHalf, kTokens, kChannels); }

  template <typename Op>
  double Measure(const Op& op) {
    return MedianSeconds(
               [&] {
                 for (int i = 0; i < kRepeat; ++i) Run(op);
                 if (!backend_->Synchronize(*stream_).ok()) std::abort();
               },
               kRounds) /
           kRepeat;
  }

  template <typename Op>
  void Row(const char* name, double bytes, const Op& op) {
    const double rate = bytes / Measure(op);
    if (ceiling_ == 0) ceiling_ = rate;
    std::printf("%-28s %9.1f MB %9.0f GB/s %6.2f\n", name, 1e-6 * bytes, 1e-9 * rate,
                rate / ceiling_);
    PrintFigureAtLeast(std::string("gpu.kernel.") + name, rate / ceiling_, "ratio", 0.85);
  }

  void Release() { buffers_.clear(); }
  double ceiling() const { return ceiling_; }

 private:
  template <typename Op>
  void Run(const Op& op) {
    if constexpr (requires { backend_->WorkspaceBytes(op); }) {
      backend_->Run(*stream_, op, scratch_.workspace());
    } else {
      backend_->Run(*stream_, op);
    }
  }

  std::unique_ptr<Backend> backend_;
  double ceiling_;
  std::unique_ptr<Stream> stream_;
  Buffer scratch_;
  std::vector<Buffer> buffers_;
};

void Activations(Bench& b) {
  const double one = 2.0 * kTokens * kChannels;  // bytes of an activation
  const Tensor x = b.Act(), y = b.Act(), z = b.Act(), u = b.Act(), v = b.Act();
  const Tensor w = b.Make(kHalf, 1, kChannels), bias = b.Make(kHalf, 1, kChannels);
  const Tensor rstd = b.Make(DType::kFloat32, 1, kTokens);
  const Tensor mean = b.Make(DType::kFloat32, 1, kTokens);
  const Tensor dw = b.Make(DType::kFloat32, 1, kChannels);
  const Tensor db = b.Make(DType::kFloat32, 1, kChannels);
  const Tensor table = b.Make(DType::kFloat32, 2048, 128);
  b.Row("convert", 2 * one, Convert{x, y});
  b.Row("rms_norm", 2 * one, RmsNormForward{x, w, y, rstd});
  b.Row("rms_norm_b", 4 * one, RmsNormBackwardInput{x, y, w, rstd, z, u});
  b.Row("rms_norm_w", 2 * one, RmsNormBackwardWeight{x, y, rstd, dw});
  b.Row("layer_norm", 2 * one, LayerNormForward{x, w, bias, y, mean, rstd});
  b.Row("layer_norm_b", 4 * one, LayerNormBackwardInput{x, y, w, mean, rstd, z, u});
  b.Row("layer_norm_w", 2 * one, LayerNormBackwardWeight{x, y, mean, rstd, dw, db});
  b.Row("rope", 2 * one, Rope{.x = x, .table = table, .seq_len = 2048});
  b.Row("swiglu", 3 * one, SwigluForward{x, y, z});
  b.Row("swiglu_b", 5 * one, SwigluBackward{x, y, z, u, v});
  b.Row("gelu", 2 * one, GeluForward{x, y});
  b.Row("gelu_b", 3 * one, GeluBackward{x, y, z});
  b.Row("add_scaled", 3 * one, AddScaled{x, y, z});
  b.Release();
}

void TheRest(Bench& b) {
  const int64_t rows = 8192, parameters = int64_t{128} << 20;
  const Tensor logits = b.Make(kHalf, rows, kVocabulary);
  const Tensor targets = b.Make(DType::kInt32, 1, rows), totals = b.Make(DType::kFloat32, 1, 2);
  b.Row("cross_entropy", 4.0 * rows * kVocabulary,
        CrossEntropy{.logits = logits, .targets = targets, .dlogits = logits, .totals = totals});
  b.Release();
  const Tensor param = b.Make(DType::kFloat32, 1, parameters);
  const Tensor grad = b.Make(DType::kFloat32, 1, parameters);
  const Tensor m = b.Make(DType::kFloat32, 1, parameters);
  const Tensor v = b.Make(DType::kFloat32, 1, parameters);
  const Tensor copy = b.Make(kHalf, 1, parameters), sum = b.Make(DType::kFloat32, 1, 1);
  b.Row("adamw", 34.0 * parameters,
        AdamW{.param = param,
              .grad = grad,
              .m = m,
              .v = v,
              .param_copy = copy,
              .step = 10,
              .lr = 1e-4,
              .zero_grad = true});
  b.Row("sum_of_squares", 4.0 * parameters, SumOfSquares{param, sum});
  b.Row("delta_bf16", 10.0 * parameters, AddScaled{param, grad, copy, -1.0f});
  b.Release();
}

}  // namespace
}  // namespace atl::bench

int main(int argc, char** argv) {
  atl::bench::Bench bench(argc > 1 ? std::atof(argv[1]) : 0.0);
  std::printf("%-28s %12s %14s %6s\n", "kernel", "bytes", "rate", "ratio");
  atl::bench::Activations(bench);
  atl::bench::TheRest(bench);
  std::printf("ratios are to %.0f GB/s\n", 1e-9 * bench.ceiling());
}
