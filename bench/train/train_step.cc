// One worker's training step on the CPU backend, at the command of bench/train/run.
//
//   train_step --threads N [MODELS.json NAME]
//
// Trains a LLaMA of d 256, or a model of bench/train/models.json. Prints "parameters <count>", then
// for every line "<steps>" on standard input makes so many steps (forward, backward, clipping,
// AdamW) and prints "<seconds> <mean loss of the last step>".

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "common/check.h"
#include "common/files.h"
#include "common/model/hugging_face.h"
#include "common/model/json.h"
#include "common/model/layout.h"
#include "common/rng.h"
#include "kernels/cpu/cpu.h"
#include "worker/model/optimizer.h"
#include "worker/model/runner.h"
#include "worker/model/weights.h"

namespace atl::bench {
namespace {

struct Task {
  ModelConfig config;
  int64_t rows = 8, tokens = 256;  // of a batch
};

ModelConfig Config() {
  ModelConfig c;
  c.family = ModelFamily::kLlama;
  c.vocab = 256;
  c.d_model = 256;
  c.layers = 8;
  c.heads = 8;
  c.kv_heads = 8;
  c.ffn = 704;
  c.max_positions = 256;
  return c;
}

template <typename T>
T Must(absl::StatusOr<T> value) {
  ATOLL_CHECK(value.ok(), std::string(value.status().message()));
  return *std::move(value);
}

Task Find(const std::string& file, const std::string& name) {
  const std::string text = Must(Must(InputFile::Open(file)).ReadAll(1 << 20));
  const nlohmann::json model = Must(ParseJsonObject(text, file, 8)).at(name);
  return {Must(ParseModelConfig(model.at("config").dump(), file)), model.at("rows"),
          model.at("tokens")};
}

int64_t TrainedParameters(const ModelConfig& config) {
  int64_t count = 0;
  for (const LayerLayout& layout : MakeLayouts(config)) count += layout.trained_size;
  return count;
}

void Serve(int threads, const Task& task) {
  const auto backend = NewCpuBackend(threads);
  const Model model = Must(Model::Create(task.config));
  const auto runner = Must(ModelRunner::Create(*backend, model, {task.rows, task.tokens}));
  const auto optimizer = Must(Optimizer::Create(*backend, runner->stream(), runner->layers(), {}));
  for (size_t i = 0; i < model.layers().size(); ++i) {
    const Tensor params = runner->params(static_cast<int>(i));
    InitLayer(model.layers()[i]->layout(), task.config.layers, 1,
              {params.f32(), static_cast<size_t>(params.size())});
  }
  std::vector<int32_t> tokens(static_cast<size_t>(task.rows * task.config.RowNumbers(task.tokens)));
  Rng rng(1);
  for (int32_t& token : tokens) {
    token = static_cast<int32_t>(rng.Below(static_cast<uint64_t>(task.config.vocab)));
  }
  std::printf("parameters %lld\n", static_cast<long long>(TrainedParameters(task.config)));
  std::fflush(stdout);

  int64_t step = 0;
  int steps = 0;
  while (std::scanf("%d", &steps) == 1) {
    const auto start = std::chrono::steady_clock::now();
    double loss = 0;
    for (int i = 0; i < steps; ++i) {
      loss = Must(runner->Train(tokens, task.rows)).mean();
      Must(optimizer->Step(++step, 1e-3f, task.rows));
    }
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
    std::printf("%.6f %.5f\n", took.count(), loss);
    std::fflush(stdout);
  }
}

}  // namespace
}  // namespace atl::bench

int main(int argc, char** argv) {
  if ((argc != 3 && argc != 5) || std::strcmp(argv[1], "--threads") != 0) {
    std::fprintf(stderr, "usage: train_step --threads N [MODELS.json NAME]\n");
    return 2;
  }
  const auto task =
      argc == 5 ? atl::bench::Find(argv[3], argv[4]) : atl::bench::Task{atl::bench::Config()};
  atl::bench::Serve(std::atoi(argv[2]), task);
}
