// Our own kernels on a GPU in bf16: bytes that each must move over the time it takes, in ratio to
// what a copy of the same size achieves (or to bytes per second given as the argument).
//
//   gpu_kernels [BYTES_PER_SECOND]

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <set>
#include <string>
#include <vector>

#include "bench/measure.h"
#include "common/rng.h"
#include "kernels/bfloat16.h"
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/device/launchers.h"

namespace atl::bench {
namespace {

constexpr int64_t kTokens = 32768, kChannels = 4096, kVocabulary = 50304, kRounds = 5, kRepeat = 20;
constexpr DType kHalf = DType::kBfloat16;

void Must(const absl::Status& status) {
  if (status.ok()) return;
  std::fflush(stdout);  // the rows so far
  std::fprintf(stderr, "gpu_kernels: %s\n", std::string(status.message()).c_str());
  std::exit(1);
}

template <typename T>
T Must(absl::StatusOr<T> value) {
  Must(value.status());
  return *std::move(value);
}

class Bench {
 public:
  explicit Bench(double ceiling) : backend_(Must(NewCudaBackend({}))), ceiling_(ceiling) {
    stream_ = Must(backend_->NewStream());
    scratch_ = Must(backend_->Allocate(int64_t{256} << 20));
    Rng rng(1);
    for (int64_t i = 0; i < kPattern; ++i) {
      floats_.push_back(static_cast<float>(rng.Normal()));
      halves_.push_back(RoundToBfloat16(floats_.back()));
    }
  }

  Tensor Zeroes(DType dtype, int64_t rows, int64_t cols) {
    const Tensor x = Take(dtype, rows, cols);
    backend_->Zero(*stream_, x);
    return x;
  }
  // Normal numbers, as training has them: how fast a GPU runs depends on the bits that it moves.
  Tensor Make(DType dtype, int64_t rows, int64_t cols) {
    const Tensor x = Take(dtype, rows, cols);
    const void* pattern = dtype == kHalf ? static_cast<const void*>(halves_.data())
                                         : static_cast<const void*>(floats_.data());
    for (int64_t at = 0; at < x.size(); at += kPattern) {
      const Tensor part(static_cast<char*>(x.data) + at * GetElementSize(dtype), dtype, 1,
                        std::min(kPattern, x.size() - at));
      backend_->CopyToDevice(*stream_, part, pattern);
    }
    Must(backend_->Synchronize(*stream_));
    return x;
  }
  Tensor Act() { return Make(kHalf, kTokens, kChannels); }
  // Numbers below the vocabulary's size; how many different ones goes to `different`.
  Tensor Tokens(int64_t count, int64_t* different) {
    const Tensor x = Take(DType::kInt32, 1, count);
    std::vector<int32_t> tokens(static_cast<size_t>(count));
    Rng rng(2);
    for (int32_t& token : tokens) token = static_cast<int32_t>(rng.Below(kVocabulary));
    *different = static_cast<int64_t>(std::set<int32_t>(tokens.begin(), tokens.end()).size());
    backend_->CopyToDevice(*stream_, x, tokens.data());
    Must(backend_->Synchronize(*stream_));
    return x;
  }

  double Seconds(const std::function<void()>& enqueue) {
    return MedianSeconds(
               [&] {
                 for (int i = 0; i < kRepeat; ++i) enqueue();
                 Must(backend_->Synchronize(*stream_));
               },
               kRounds) /
           kRepeat;
  }
  template <typename Op>
  double Measure(const Op& op) {
    return Seconds([&] { Run(op); });
  }
  // By our own kernel, whatever cuDNN would take.
  template <typename Op>
  double MeasureOwn(const Op& op) {
    const cuda::Queue queue{dynamic_cast<cuda::DeviceBackend&>(*backend_).RawStream(*stream_),
                            &errors_};
    const double seconds = Seconds([&] {
      if constexpr (requires { cuda::Enqueue(queue, op, scratch_.workspace()); }) {
        cuda::Enqueue(queue, op, scratch_.workspace());
      } else {
        cuda::Enqueue(queue, op);
      }
    });
    Must(errors_.Take());
    return seconds;
  }

  template <typename Op>
  void Row(const char* name, double bytes, const Op& op) {
    PrintRatio(name, bytes, Measure(op));
  }
  // Prints the row of an operation that is not meant to come near the memory's rate.
  template <typename Op>
  void RowWithoutGoal(const char* name, double bytes, const Op& op) {
    PrintRate(name, bytes, Measure(op));
  }
  template <typename Op>
  void OwnRow(const char* name, double bytes, const Op& op) {
    PrintRatio(name, bytes, MeasureOwn(op));
  }
  // FLOP per second of our own kernel, and beside it of what the backend takes.
  template <typename Op>
  void FlopsRow(const char* name, double flops, const Op& op) {
    const double own = MeasureOwn(op), taken = Measure(op);
    std::printf("%-28s %9.1f TFLOP/s by our own kernel, %.1f as it is run\n", name,
                1e-12 * flops / own, 1e-12 * flops / taken);
  }

  void PrintRatio(const char* name, double bytes, double seconds) {
    PrintFigureAtLeast(std::string("gpu.kernel.") + name, PrintRate(name, bytes, seconds), "ratio",
                       0.85);
  }
  // Prints and returns it, in ratio to the ceiling.
  double PrintRate(const char* name, double bytes, double seconds) {
    const double rate = bytes / seconds;
    if (ceiling_ == 0) ceiling_ = rate;
    std::printf("%-28s %9.1f MB %9.0f GB/s %6.2f\n", name, 1e-6 * bytes, 1e-9 * rate,
                rate / ceiling_);
    return rate / ceiling_;
  }
  // Prints what was declined, as gpu_step does: rows would be of our own kernels, unseen.
  void PrintDeclined() const {
    for (const DeclinedWork& work : DeclinedBy(*backend_)) {
      std::printf("DECLINED %lld %s: %s\n", static_cast<long long>(work.count), work.what.c_str(),
                  work.reason.c_str());
    }
  }

  void Release() { buffers_.clear(); }
  double ceiling() const { return ceiling_; }

 private:
  static constexpr int64_t kPattern = int64_t{1} << 20;

  Tensor Take(DType dtype, int64_t rows, int64_t cols) {
    buffers_.push_back(Must(backend_->Allocate(rows * cols * GetElementSize(dtype))));
    return {buffers_.back().data(), dtype, rows, cols};
  }

  template <typename Op>
  void Run(const Op& op) {
    if constexpr (requires { backend_->WorkspaceBytes(op); }) {
      const int64_t wanted = backend_->WorkspaceBytes(op);
      if (wanted > scratch_.bytes()) scratch_ = Must(backend_->Allocate(wanted));
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
  std::vector<float> floats_;
  std::vector<Bfloat16> halves_;
  cuda::FirstError errors_;
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
  b.Row("rms_norm", 2 * one, NormForward{.x = x, .w = w, .y = y, .rstd = rstd});
  b.Row("rms_norm_b", 4 * one, NormBackwardInput{x, y, w, {}, rstd, z, u});
  b.Row("rms_norm_w", 2 * one, NormBackwardWeight{x, y, {}, rstd, dw, {}});
  b.Row("layer_norm", 2 * one, NormForward{x, w, bias, y, mean, rstd});
  b.Row("layer_norm_b", 4 * one, NormBackwardInput{x, y, w, mean, rstd, z, u});
  b.Row("layer_norm_w", 2 * one, NormBackwardWeight{x, y, mean, rstd, dw, db});
  b.Row("rope", 2 * one, Rope{.x = x, .table = table, .seq_len = 2048});
  b.Row("swiglu", 3 * one, GatedForward{x, y, z});
  b.Row("swiglu_b", 5 * one, GatedBackward{x, y, z, u, v});
  b.Row("gelu", 2 * one, GatedForward{.gate = x, .y = y, .kind = Activation::kGeluTanh});
  b.Row("gelu_b", 3 * one,
        GatedBackward{.gate = x, .dy = y, .dgate = z, .kind = Activation::kGeluTanh});
  b.Row("add_scaled", 3 * one, AddScaled{x, y, z});
  b.Release();
}

void TheRest(Bench& b) {
  const int64_t rows = 8192, parameters = int64_t{128} << 20;
  int64_t different = 0;
  const Tensor logits = b.Make(kHalf, rows, kVocabulary);
  const Tensor targets = b.Tokens(rows, &different);
  const Tensor totals = b.Zeroes(DType::kFloat32, 1, 2);
  b.Row("cross_entropy", 4.0 * rows * kVocabulary,
        CrossEntropy{.logits = logits, .targets = targets, .dlogits = logits, .totals = totals});
  b.Release();
  const Tensor param = b.Make(DType::kFloat32, 1, parameters);
  const Tensor grad = b.Make(DType::kFloat32, 1, parameters);
  const Tensor m = b.Zeroes(DType::kFloat32, 1, parameters);
  const Tensor v = b.Zeroes(DType::kFloat32, 1, parameters);
  const Tensor copy = b.Make(kHalf, 1, parameters), sum = b.Make(DType::kFloat32, 1, 1);
  b.Row("adamw", 34.0 * parameters,
        AdamStep{.param = param,
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

void Embeddings(Bench& b) {
  const double one = 2.0 * kTokens * kChannels;
  int64_t different = 0;
  const Tensor tokens = b.Tokens(kTokens, &different);
  const Tensor table = b.Make(kHalf, kVocabulary, kChannels), y = b.Act();
  const Tensor dtable = b.Zeroes(DType::kFloat32, kVocabulary, kChannels);
  const Tensor sum = b.Zeroes(DType::kFloat32, 1, kChannels);
  b.Row("embedding", 2 * one,
        EmbeddingForward{.tokens = tokens, .table = table, .y = y, .seq_len = kTokens});
  b.RowWithoutGoal(
      "embedding_w", one + 8.0 * different * kChannels,
      EmbeddingBackwardWeight{.tokens = tokens, .dy = y, .dtable = dtable, .seq_len = kTokens});
  b.OwnRow("bias_gradient", one, cuda::SumRows{y, sum});
  b.Release();
}

// Measures attention by the kernels for what cuDNN declines.
void Attention(Bench& b) {
  const AttentionShape shape{.batch = 8,
                             .seq_len = 1024,
                             .heads = 16,
                             .kv_heads = 8,
                             .head_dim = 128,
                             .scale = 1 / std::sqrt(128.0f)};
  const int64_t n = shape.batch * shape.seq_len, q = shape.heads * shape.head_dim;
  const auto act = [&](int64_t cols) { return b.Make(kHalf, n, cols); };
  const Tensor queries = act(q), keys = act(q / 2), values = act(q / 2), out = act(q);
  const Tensor dout = act(q), dq = act(q), dk = act(q / 2), dv = act(q / 2);
  const Tensor lse = b.Zeroes(DType::kFloat32, shape.batch * shape.heads, shape.seq_len);
  const double product = static_cast<double>(n) * shape.seq_len * q;  // causal: half a square
  b.FlopsRow("attention", 2 * product, AttentionForward{shape, queries, keys, values, out, lse});
  b.FlopsRow("attention_b", 5 * product,
             AttentionBackward{.shape = shape,
                               .q = queries,
                               .k = keys,
                               .v = values,
                               .out = out,
                               .lse = lse,
                               .dout = dout,
                               .dq = dq,
                               .dk = dk,
                               .dv = dv});
  b.Release();
}

}  // namespace
}  // namespace atl::bench

int main(int argc, char** argv) {
  atl::bench::Bench bench(argc > 1 ? std::atof(argv[1]) : 0.0);
  std::printf("%-28s %12s %14s %6s\n", "kernel", "bytes", "rate", "ratio");
  atl::bench::Activations(bench);
  atl::bench::TheRest(bench);
  atl::bench::Embeddings(bench);
  atl::bench::Attention(bench);
  bench.PrintDeclined();
  std::printf("ratios are to %.0f GB/s\n", 1e-9 * bench.ceiling());
}
