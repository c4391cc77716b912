// One worker's training step on a GPU in bf16, at the command of bench/gpu/run.
//
//   gpu_step MODEL ROWS SEQ_LEN [graphs] [weights=FILE]
//
// With "graphs" what repeats is recorded; FILE gets the first parameters, as they lie in memory,
// layer after layer, and the tokens. Makes three steps (forward, backward, clipping, AdamW), prints
// "parameters <count> flops_per_token <number> bytes <of the pool, at most> losses <their mean
// losses> device <bytes of the device that the driver says they took>", then for every line
// "<steps>" on standard input makes so many more and prints "<seconds> <mean loss of the last
// step>". With a number below zero it pushes meanwhile: after the first step all parameters begin
// their way to the host, as a worker's do, which takes no notice of how long that lasts. At the end
// of its input it prints what NVIDIA's libraries declined and of what was not recorded: "DECLINED
// <times> <what>: <reason>".

#include <cuda_runtime.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include "bench/gpu/models.h"
#include "common/model/testing/model_sizes.h"
#include "common/rng.h"
#include "kernels/cuda/cuda.h"
#include "worker/model/optimizer.h"
#include "worker/model/runner.h"
#include "worker/model/weights.h"
#include "worker/pipeline/layer_copies.h"
#include "worker/pipeline/staging.h"

namespace atl::bench {
namespace {

void Must(const absl::Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "gpu_step: %s\n", std::string(status.message()).c_str());
  std::exit(1);
}

template <typename T>
T Must(absl::StatusOr<T> value) {
  Must(value.status());
  return *std::move(value);
}

// Loads the device as a worker that pushes does: with a copy of all parameters beside them, in
// order with the steps, and their transfer to the host by the classes that workers have for it.
class Pusher {
 public:
  Pusher(Backend& backend, std::unique_ptr<Backend> staging, ModelRunner& runner)
      : runner_(runner), staging_(std::move(staging)), copies_(&backend, &staging_) {
    for (LayerState* layer : runner.layers()) {
      host_.emplace_back(static_cast<size_t>(layer->params().size()));
    }
  }
  ~Pusher() { Finish(); }

  // Pushes the parameters as the step that is enqueued leaves them.
  void Push() {
    Finish();
    std::vector<Tensor> parameters;
    for (LayerState* layer : runner_.layers()) parameters.push_back(layer->params());
    const bool taken =
        Must(copies_.Take(runner_.stream(), parameters, [](int64_t) { return true; }));
    if (!taken) Must(absl::ResourceExhaustedError("no room for a copy of the parameters"));
    reads_ = std::thread([this] {
      for (size_t i = 0; i < host_.size(); ++i) Must(copies_.Read(i, 0, host_[i]));
    });
  }
  void Finish() {
    if (reads_.joinable()) reads_.join();
  }

 private:
  ModelRunner& runner_;
  worker::Staging staging_;
  worker::LayerCopies copies_;
  std::vector<std::vector<float>> host_;
  std::thread reads_;
};

struct Close {
  void operator()(std::FILE* file) const {
    if (std::fclose(file) != 0) Must(absl::InternalError("cannot write the weights"));
  }
};
using File = std::unique_ptr<std::FILE, Close>;

template <typename T>
void Write(const File& file, const std::vector<T>& values) {
  if (file == nullptr) return;
  if (std::fwrite(values.data(), sizeof(T), values.size(), file.get()) != values.size()) {
    Must(absl::InternalError("cannot write the weights"));
  }
}

int64_t FreeBytes() {
  size_t free_bytes = 0, total_bytes = 0;
  if (cudaMemGetInfo(&free_bytes, &total_bytes) != cudaSuccess) return 0;
  return static_cast<int64_t>(free_bytes);
}

void Initialise(Backend& backend, const Model& model, ModelRunner& runner, const File& file) {
  for (size_t i = 0; i < model.layers().size(); ++i) {
    std::vector<float> values(static_cast<size_t>(model.layers()[i]->layout().size));
    InitLayer(model.layers()[i]->layout(), model.config().layers, 1, values);
    LayerState& layer = runner.layer(static_cast<int>(i));
    backend.CopyToDevice(runner.stream(), layer.params(), values.data());
    layer.ParamsWritten(runner.stream());
    Must(backend.Synchronize(runner.stream()));  // the values die here
    Write(file, values);
  }
}

struct Options {
  bool graphs = false;
  std::string weights;
};

void Serve(const std::string& name, int64_t rows, int64_t seq_len, const Options& options) {
  CudaOptions cuda;
  cuda.graphs = options.graphs;
  auto backends = Must(NewCudaBackends(cuda, 2));
  const std::unique_ptr<Backend> backend = std::move(backends[0]);
  const int64_t free_bytes = FreeBytes();
  const ModelConfig config = GpuModel(name, seq_len);
  const Model model = Must(Model::Create(config, DType::kBfloat16));
  const auto runner = Must(ModelRunner::Create(*backend, model, {rows, seq_len}));
  const auto optimizer = Must(Optimizer::Create(*backend, runner->stream(), runner->layers(), {}));
  File file;
  if (!options.weights.empty()) {
    file.reset(std::fopen(options.weights.c_str(), "wb"));
    if (file == nullptr) Must(absl::NotFoundError("cannot open " + options.weights));
  }
  Initialise(*backend, model, *runner, file);
  std::vector<int32_t> tokens(static_cast<size_t>(rows * (seq_len + 1)));
  Rng rng(1);
  for (int32_t& token : tokens) token = static_cast<int32_t>(rng.Below(config.vocab));
  Write(file, tokens);
  file.reset();
  int64_t step = 0;
  std::string losses;
  for (int i = 0; i < 3; ++i) {
    absl::StrAppend(&losses, i == 0 ? "" : ",", Must(runner->Train(tokens, rows)).mean());
    Must(optimizer->Step(++step, 1e-4f));
  }
  Must(backend->Synchronize(runner->stream()));
  std::printf("parameters %lld flops_per_token %.6g bytes %lld losses %s device %lld\n",
              static_cast<long long>(atl::testing::ParameterCount(config)),
              atl::testing::TrainFlopsPerToken(config, seq_len),
              static_cast<long long>(backend->Memory().peak_bytes), losses.c_str(),
              static_cast<long long>(free_bytes - FreeBytes()));
  std::fflush(stdout);
  Pusher pusher(*backend, std::move(backends[1]), *runner);
  pusher.Push();  // takes its memory
  pusher.Finish();

  int steps = 0;
  while (std::scanf("%d", &steps) == 1) {
    const auto start = std::chrono::steady_clock::now();
    const bool push = steps < 0;
    double loss = 0;
    for (int i = 0; i < std::abs(steps); ++i) {
      loss = Must(runner->Train(tokens, rows)).mean();
      Must(optimizer->Step(++step, 1e-4f));
      if (push && i == 0) pusher.Push();
    }
    Must(backend->Synchronize(runner->stream()));
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
    if (push) pusher.Finish();
    std::printf("%.6f %.5f\n", took.count(), loss);
    std::fflush(stdout);
  }
  for (const DeclinedWork& work : DeclinedBy(*backend)) {
    std::fprintf(stderr, "DECLINED %lld %s: %s\n", static_cast<long long>(work.count),
                 work.what.c_str(), work.reason.c_str());
  }
  if (const RepeatCounts repeats = backend->Repeats(); options.graphs) {
    std::fprintf(stderr, "gpu_step: %lld graphs recorded, launched %lld times\n",
                 static_cast<long long>(repeats.recorded),
                 static_cast<long long>(repeats.replayed));
    if (!repeats.trouble.empty()) {
      std::fprintf(stderr, "DECLINED 1 CUDA graphs: %s\n", repeats.trouble.c_str());
    } else if (repeats.replayed == 0) {
      std::fprintf(stderr, "DECLINED 1 CUDA graphs: none was launched\n");
    }
  }
}

}  // namespace
}  // namespace atl::bench

int main(int argc, char** argv) {
  atl::bench::Options options;
  bool known = argc >= 4;
  for (int i = 4; i < argc; ++i) {
    const std::string word = argv[i];
    const bool weights = word.rfind("weights=", 0) == 0;
    if (weights) options.weights = word.substr(8);
    options.graphs = options.graphs || word == "graphs";
    known = known && (weights || word == "graphs");
  }
  if (!known) {
    std::fprintf(stderr,
                 "usage: gpu_step gpt2|gpt2-50257|llama|tiny ROWS SEQ_LEN [graphs] "
                 "[weights=FILE]\n");
    return 2;
  }
  atl::bench::Serve(argv[1], std::atoll(argv[2]), std::atoll(argv[3]), options);
}
