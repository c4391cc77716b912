// One worker's training step on a GPU in bf16, at the command of bench/gpu/run.
//
//   gpu_step MODEL ROWS SEQ_LEN [graphs]
//
// With "graphs" what repeats is recorded. Prints "parameters <count> flops_per_token <number> bytes
// <of the pool, at most> predicted <bytes>", then for every line "<steps>"
// on standard input makes so many steps (forward, backward, clipping, AdamW) and prints "<seconds>
// <mean loss of the last step>". With `push`, all parameters are copied to pinned memory on a
// second stream meanwhile, a layer at a time, as a worker that pushes deltas does.

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

void Initialise(Backend& backend, const Model& model, ModelRunner& runner) {
  for (size_t i = 0; i < model.layers().size(); ++i) {
    std::vector<float> values(static_cast<size_t>(model.layers()[i]->layout().size));
    InitLayer(model.layers()[i]->layout(), model.config().layers, 1, values);
    LayerState& layer = runner.layer(static_cast<int>(i));
    backend.CopyToDevice(runner.stream(), layer.params(), values.data());
    layer.ParamsWritten(runner.stream());
    Must(backend.Synchronize(runner.stream()));  // the values die here
  }
}

void Serve(const std::string& name, int64_t rows, int64_t seq_len, bool graphs) {
  CudaOptions cuda;
  cuda.graphs = graphs;
  const auto backend = Must(NewCudaBackend(cuda));
  const ModelConfig config = GpuModel(name, seq_len);
  const Model model = Must(Model::Create(config, DType::kBfloat16));
  const auto runner = Must(ModelRunner::Create(*backend, model, {rows, seq_len}));
  const auto optimizer =
      Must(AdamWOptimizer::Create(*backend, runner->stream(), runner->layers(), {}));
  Initialise(*backend, model, *runner);
  std::vector<int32_t> tokens(static_cast<size_t>(rows * (seq_len + 1)));
  Rng rng(1);
  for (int32_t& token : tokens) token = static_cast<int32_t>(rng.Below(config.vocab));
  Pusher pusher(*backend, *runner);
  std::printf("parameters %lld flops_per_token %.6g bytes %lld predicted %lld\n",
              static_cast<long long>(config.ParameterCount()), config.TrainFlopsPerToken(seq_len),
              static_cast<long long>(backend->Memory().peak_bytes),
              static_cast<long long>(runner->memory_bytes()));
  std::fflush(stdout);

  int64_t step = 0;
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
    if (const RepeatCounts repeats = backend->Repeats(); graphs && !repeats.trouble.empty()) {
      std::fprintf(stderr, "gpu_step: %lld recorded, not all: %s\n",
                   static_cast<long long>(repeats.recorded), repeats.trouble.c_str());
    }
    std::printf("%.6f %.5f\n", took.count(), loss);
    std::fflush(stdout);
  }
}

}  // namespace
}  // namespace atl::bench

int main(int argc, char** argv) {
  const bool graphs = argc == 5 && std::string(argv[4]) == "graphs";
  if (argc != 4 && !graphs) {
    std::fprintf(stderr, "usage: gpu_step gpt2|gpt2-50257|llama|tiny ROWS SEQ_LEN [graphs]\n");
    return 2;
  }
  atl::bench::Serve(argv[1], std::atoll(argv[2]), std::atoll(argv[3]), graphs);
}
