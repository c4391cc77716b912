// One worker's training step on a GPU in bf16, at the command of bench/gpu/run.
//
//   gpu_step MODEL ROWS SEQ_LEN [graphs] [weights=FILE]
//
// With "graphs" what repeats is recorded; FILE gets the first parameters, as they lie in memory,
// layer after layer, and the tokens. Makes three steps (forward, backward, clipping, AdamW), prints
// "parameters <count> flops_per_token <number> bytes <of the pool, at most> losses <their mean
// losses> device <bytes of the device that the driver says they took>", then for every line
// "<steps>" on standard input makes so many more and prints "<seconds> <mean loss of the last
// step>". With a number below zero, all parameters are copied to pinned memory on a second stream
// meanwhile, a layer at a time, as a worker that pushes deltas does. At the end of its input it
// tells of what NVIDIA's libraries declined: "DECLINED <times> <what>: <reason>".

#include <cuda_runtime.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "bench/gpu/models.h"
#include "common/rng.h"
#include "kernels/cuda/cuda.h"
#include "worker/model/optimizer.h"
#include "worker/model/runner.h"
#include "worker/model/weights.h"

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

// Copies layers to the host in turn, over and over.
class Pusher {
 public:
  Pusher(Backend& backend, ModelRunner& runner) : backend_(backend), runner_(runner) {
    stream_ = Must(backend.NewStream());
    event_ = Must(backend.NewEvent());
    int64_t largest = 0;
    for (LayerState* layer : runner.layers()) largest = std::max(largest, layer->params().size());
    staging_ = Must(backend.AllocateHost(4 * largest));
  }

  // One layer, once the step that is enqueued has written it.
  void PushOne() {
    backend_.Record(runner_.stream(), *event_);
    backend_.Wait(*stream_, *event_);
    const auto layers = runner_.layers();
    backend_.CopyToHost(*stream_, staging_.data(), layers[next_++ % layers.size()]->params());
  }
  void Finish() { Must(backend_.Synchronize(*stream_)); }

 private:
  Backend& backend_;
  ModelRunner& runner_;
  std::unique_ptr<Stream> stream_;
  std::unique_ptr<Event> event_;
  Buffer staging_;
  size_t next_ = 0;
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
  const auto backend = Must(NewCudaBackend(cuda));
  const int64_t free_bytes = FreeBytes();
  const ModelConfig config = GpuModel(name, seq_len);
  const Model model = Must(Model::Create(config, DType::kBfloat16));
  const auto runner = Must(ModelRunner::Create(*backend, model, {rows, seq_len}));
  const auto optimizer =
      Must(AdamWOptimizer::Create(*backend, runner->stream(), runner->layers(), {}));
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
  Pusher pusher(*backend, *runner);
  int64_t step = 0;
  std::string losses;
  for (int i = 0; i < 3; ++i) {
    absl::StrAppend(&losses, i == 0 ? "" : ",", Must(runner->Train(tokens, rows)).mean());
    Must(optimizer->Step(++step, 1e-4f));
  }
  Must(backend->Synchronize(runner->stream()));
  std::printf("parameters %lld flops_per_token %.6g bytes %lld losses %s device %lld\n",
              static_cast<long long>(config.ParameterCount()), config.TrainFlopsPerToken(seq_len),
              static_cast<long long>(backend->Memory().peak_bytes), losses.c_str(),
              static_cast<long long>(free_bytes - FreeBytes()));
  std::fflush(stdout);

  int steps = 0;
  while (std::scanf("%d", &steps) == 1) {
    const auto start = std::chrono::steady_clock::now();
    const bool push = steps < 0;
    double loss = 0;
    for (int i = 0; i < std::abs(steps); ++i) {
      loss = Must(runner->Train(tokens, rows)).mean();
      Must(optimizer->Step(++step, 1e-4f));
      if (push) pusher.PushOne();
    }
    Must(backend->Synchronize(runner->stream()));
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
    if (push) pusher.Finish();
    if (const RepeatCounts repeats = backend->Repeats();
        options.graphs && !repeats.trouble.empty()) {
      std::fprintf(stderr, "gpu_step: %lld recorded, not all: %s\n",
                   static_cast<long long>(repeats.recorded), repeats.trouble.c_str());
    }
    std::printf("%.6f %.5f\n", took.count(), loss);
    std::fflush(stdout);
  }
  for (const DeclinedWork& work : DeclinedBy(*backend)) {
    std::fprintf(stderr, "DECLINED %lld %s: %s\n", static_cast<long long>(work.count),
                 work.what.c_str(), work.reason.c_str());
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
