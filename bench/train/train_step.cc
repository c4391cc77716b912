// One worker's training step on the CPU backend, at the command of bench/train/run.
//
//   train_step --threads N
//
// Prints "parameters <count>", then for every line "<steps>" on standard input makes so many steps
// (forward, backward, clipping, AdamW) and prints "<seconds> <mean loss of the last step>".

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "common/check.h"
#include "common/rng.h"
#include "kernels/cpu/cpu.h"
#include "worker/model/optimizer.h"
#include "worker/model/runner.h"
#include "worker/model/weights.h"

namespace atl::bench {
namespace {

constexpr int64_t kRows = 8, kSeqLen = 256;

ModelConfig Config() {
  ModelConfig c;
  c.family = ModelFamily::kLlama;
  c.vocab = 256;
  c.d_model = 256;
  c.layers = 8;
  c.heads = 8;
  c.kv_heads = 8;
  c.ffn = 704;
  c.max_positions = kSeqLen;
  return c;
}

template <typename T>
T Must(absl::StatusOr<T> value) {
  ATOLL_CHECK(value.ok(), std::string(value.status().message()));
  return *std::move(value);
}

void Serve(int threads) {
  const auto backend = NewCpuBackend(threads);
  const Model model = Must(Model::Create(Config()));
  const auto runner = Must(ModelRunner::Create(*backend, model, {kRows, kSeqLen}));
  const auto optimizer = Must(Optimizer::Create(*backend, runner->stream(), runner->layers(), {}));
  for (size_t i = 0; i < model.layers().size(); ++i) {
    const Tensor params = runner->params(static_cast<int>(i));
    InitLayer(model.layers()[i]->layout(), Config().layers, 1,
              {params.f32(), static_cast<size_t>(params.size())});
  }
  std::vector<int32_t> tokens(kRows * (kSeqLen + 1));
  Rng rng(1);
  for (int32_t& token : tokens) token = static_cast<int32_t>(rng.Below(256));
  std::printf("parameters %lld\n", static_cast<long long>(Config().ParameterCount()));
  std::fflush(stdout);

  int64_t step = 0;
  int steps = 0;
  while (std::scanf("%d", &steps) == 1) {
    const auto start = std::chrono::steady_clock::now();
    double loss = 0;
    for (int i = 0; i < steps; ++i) {
      loss = Must(runner->Train(tokens, kRows)).mean();
      Must(optimizer->Step(++step, 1e-3f));
    }
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
    std::printf("%.6f %.5f\n", took.count(), loss);
    std::fflush(stdout);
  }
}

}  // namespace
}  // namespace atl::bench

int main(int argc, char** argv) {
  if (argc != 3 || std::strcmp(argv[1], "--threads") != 0) {
    std::fprintf(stderr, "usage: train_step --threads N\n");
    return 2;
  }
  atl::bench::Serve(std::atoi(argv[2]));
}
