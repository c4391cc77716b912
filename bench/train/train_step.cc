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
#include "common/masked_tokens.h"
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
  int64_t documents = 1;           // of a sequence
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
  Task task{Must(ParseModelConfig(model.at("config").dump(), file)), model.at("rows"),
            model.at("tokens"), model.value("documents", int64_t{1})};
  if (const auto adapter = model.find("adapter"); adapter != model.end()) {
    task.config.adapter = {
        .rank = adapter->at("rank"), .alpha = adapter->at("alpha"), .targets = {kAllLinear}};
  }
  return task;
}

// Document d of each sequence begins at d tokens / documents, and a few further on.
void MarkDocuments(const Task& task, std::vector<int32_t>& tokens) {
  const int64_t length = task.config.RowNumbers(task.tokens);
  for (int64_t row = 0; row < task.rows; ++row) {
    for (int64_t d = 0; d < task.documents; ++d) {
      const int64_t begin = d * task.tokens / task.documents + d * 37 % 61;
      int32_t& token = tokens[static_cast<size_t>(row * length + begin)];
      token = MarkDocument(token);
    }
  }
}

void FillWeights(const Task& task, ModelRunner& runner) {
  const std::vector<LayerLayout> base = MakeLayouts(task.config.Base());
  for (size_t i = 0; i < runner.model().layers().size(); ++i) {
    const int layer = static_cast<int>(i);
    const Tensor params = runner.params(layer);
    InitLayer(runner.model().layers()[i]->layout(), task.config.layers, 1,
              {params.f32(), static_cast<size_t>(params.size())});
    if (!task.config.adapter.present()) continue;
    std::vector<float> frozen(static_cast<size_t>(base[i].size));
    InitLayer(base[i], task.config.layers, 1, frozen);
    LayerState& state = runner.layer(layer);
    ATOLL_CHECK(state.WriteFrozen(runner.stream(), FrozenWeights(state.layout(), frozen)).ok());
  }
}

int64_t TrainedParameters(const ModelConfig& config) {
  int64_t count = 0;
  for (const LayerLayout& layout : MakeLayouts(config)) count += layout.trained_size;
  return count;
}

void Serve(int threads, const Task& task) {
  const auto backend = NewCpuBackend(threads);
  const Model model = Must(Model::Create(task.config));
  const auto runner = Must(
      ModelRunner::Create(*backend, model,
                          {.micro_batch_rows = task.rows,
                           .seq_len = task.tokens,
                           .documents = task.documents > 1 ? Documents::kMask : Documents::kText}));
  const auto optimizer = Must(Optimizer::Create(*backend, runner->stream(), runner->layers(), {}));
  FillWeights(task, *runner);
  std::vector<int32_t> tokens(static_cast<size_t>(task.rows * task.config.RowNumbers(task.tokens)));
  Rng rng(1);
  for (int32_t& token : tokens) {
    token = static_cast<int32_t>(rng.Below(static_cast<uint64_t>(task.config.vocab)));
  }
  if (task.documents > 1) MarkDocuments(task, tokens);
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
