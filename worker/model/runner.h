// One whole model on one device: parameters, gradients, and the memory to run batches.

#ifndef ATOLL_WORKER_MODEL_RUNNER_H_
#define ATOLL_WORKER_MODEL_RUNNER_H_

#include <cmath>
#include <memory>
#include <span>
#include <vector>

#include "common/model/targets.h"
#include "worker/model/host_reals.h"
#include "worker/model/layer_state.h"
#include "worker/model/model.h"
#include "worker/model/stage.h"

namespace atl {

// Sums what the routers of a mixture's block say of a step in training: RouterLosses, means over
// sequences; and by expert the tokens that it saw.
struct RouterSum {
  double balance = 0, z = 0;
  std::vector<int64_t> tokens;
};

struct LossSum {
  double nats = 0;
  int64_t tokens = 0;
  double hits = 0;  // targets that have the largest logit; of tokens where they are counted
  std::vector<RouterSum> routers = {};  // in training, by mixture; they are not in `nats`

  // Means over mixtures.
  double balance() const { return Mean(&RouterSum::balance); }
  double router_z() const { return Mean(&RouterSum::z); }
  // Adds `numbers`: of each mixture a row of the routers' totals (StageCall).
  template <class Numbers>
  void AddRouters(const Numbers& numbers, int64_t mixtures, int64_t experts) {
    routers.resize(static_cast<size_t>(mixtures));
    int64_t at = 0;
    for (RouterSum& router : routers) {
      router.balance += numbers[at++];
      router.z += numbers[at++];
      router.tokens.resize(static_cast<size_t>(experts));
      for (int64_t& tokens : router.tokens) tokens += std::llround(numbers[at++]);
    }
  }
  double mean() const { return tokens == 0 ? 0 : nats / static_cast<double>(tokens); }
  double accuracy() const { return tokens == 0 ? 0 : hits / static_cast<double>(tokens); }

 private:
  double Mean(double RouterSum::*which) const {
    double sum = 0;
    for (const RouterSum& router : routers) sum += router.*which;
    return routers.empty() ? 0 : sum / static_cast<double>(routers.size());
  }
};

struct RunnerOptions {
  int64_t micro_batch_rows = 1;  // sequences that run at once; larger batches are cut up
  int64_t seq_len = 0;           // longest sequence; at most the model's LongestSequence()
  bool train = true;             // false: neither gradients nor moments; Evaluate and Logits only
  InnerOptimizer optimizer = InnerOptimizer::kAdamW;  // that the moments are for
  Documents documents = Documents::kText;             // of rows that Train and Evaluate get
  // Set where the model is a tensor-parallel rank's part: all ranks' runners make the same calls.
  // The communicator outlives the runner.
  Communicator* communicator = nullptr;
};

// Used by one thread at a time, as its Backend is. The backend and the model outlive it. A model of
// bf16 has its parameters twice: see LayerState. Its activations and their gradients are bf16;
// sums, the loss and gradients of weights are fp32.
class ModelRunner {
 public:
  // Takes all memory that it will ever use. Parameters are undefined until they are written;
  // gradients are zero.
  static absl::StatusOr<std::unique_ptr<ModelRunner>> Create(Backend& backend, const Model& model,
                                                             const RunnerOptions& options);

  const Model& model() const { return model_; }
  int64_t seq_len() const { return options_.seq_len; }
  // Device memory that it takes, by the shapes of what lies there: before the allocator's rounding.
  int64_t memory_bytes() const;
  Backend& backend() { return backend_; }
  Stream& stream() { return *stream_; }

  LayerState& layer(int index) { return layers_[index]; }
  std::vector<LayerState*> layers();  // for an Optimizer
  Tensor params(int index) const { return layers_[index].params(); }
  Tensor grads(int index) const { return layers_[index].grads(); }

  // `rows` sequences of T <= seq_len inputs and targets (kIgnoredTarget: none), or images: see
  // FillRow.
  struct Batch {
    std::vector<int32_t> inputs, targets;
    int64_t rows = 0;
    std::vector<int32_t> borders = {};  // of all rows, see FillBorders; empty: there are none
  };
  // Makes a batch of rows of T + 1 tokens: see FillRow.
  Batch MakeBatch(std::span<const int32_t> tokens, int64_t rows, int64_t step) const;

  // Forward and backward over a batch, or over rows of T + 1 tokens in the optimizer's step `step`.
  // Adds the gradient of the batch's MEAN loss to grads(): micro-batches, also an incomplete last
  // one, are weighted by the targets that count. Waits for the device. An error of the device or
  // the communicator leaves the gradients worthless.
  absl::StatusOr<LossSum> Train(const Batch& batch);
  absl::StatusOr<LossSum> Train(std::span<const int32_t> tokens, int64_t rows, int64_t step = 1) {
    return Train(MakeBatch(tokens, rows, step));
  }

  // The loss alone, with hits.
  absl::StatusOr<LossSum> Evaluate(const Batch& batch) { return RunBatch(batch, false); }
  absl::StatusOr<LossSum> Evaluate(std::span<const int32_t> tokens, int64_t rows) {
    return Evaluate(MakeBatch(tokens, rows, 0));
  }

  // Logits of one sequence: all positions [T, vocab], or only the last one's [1, vocab], by the
  // size of `logits`. Of one image, its pixels are the tokens. A tensor-parallel rank gets those of
  // its part of the vocabulary. REQUIRES: 0 < tokens.size() <= seq_len.
  absl::Status Logits(std::span<const int32_t> tokens, std::span<float> logits);

 private:
  std::optional<LayerState::Training> training() const {
    if (!options_.train) return std::nullopt;
    return LayerState::Training{options_.optimizer};
  }
  ModelRunner(Backend& backend, const Model& model, const RunnerOptions& options)
      : backend_(backend), model_(model), options_(options) {}

  absl::Status Allocate();
  int64_t BorderNumbers(int64_t seq_len) const {  // of a row
    return atl::BorderNumbers(model_.config(), options_.documents != Documents::kText, seq_len);
  }
  StageCall Call(bool evaluates = false, const Tensor& borders = {}) {
    return {backend_,
            *stream_,
            workspace_,
            constants_,
            options_.communicator,
            evaluates,
            {borders, options_.documents == Documents::kContinue}};
  }
  // `targets` may be empty.
  void StageTokens(std::span<const int32_t> inputs, std::span<const int32_t> targets, int slot);
  absl::StatusOr<LossSum> RunBatch(const Batch& batch, bool train);
  // On the device; absent where all sequences are whole.
  Tensor StageBorders(std::span<const int32_t> borders, int64_t seq_len);
  absl::Status RunMicroBatch(int slot, const Batch& batch, int64_t batch_tokens, bool train,
                             const Tensor& borders);
  absl::Status RunLogits(int slot, int64_t first, std::span<float> logits);
  absl::Status CopyLogits(const Tensor& output, std::span<float> logits);

  Backend& backend_;
  const Model& model_;
  const RunnerOptions options_;
  std::unique_ptr<Stream> stream_;
  std::vector<LayerState> layers_;
  std::unique_ptr<Stage> stage_;
  Buffer memory_;   // everything below that lies in the backend
  Buffer staging_;  // on the host: borders, tokens and targets of a micro-batch
  Tensor borders_;  // absent where rows have none
  Tensor targets_, totals_, constants_;
  Tensor router_share_, router_totals_;  // of mixtures: see StageCall
  HostReals host_totals_, host_share_, host_router_totals_;
  Workspace workspace_;
};

}  // namespace atl

#endif  // ATOLL_WORKER_MODEL_RUNNER_H_
