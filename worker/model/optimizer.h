// AdamW with gradient clipping over a ModelRunner's layers.

#ifndef ATOLL_WORKER_MODEL_OPTIMIZER_H_
#define ATOLL_WORKER_MODEL_OPTIMIZER_H_

#include <memory>
#include <vector>

#include "worker/model/runner.h"

namespace atl {

struct AdamWOptions {
  float beta1 = 0.9f;
  float beta2 = 0.95f;
  float epsilon = 1e-8f;
  float weight_decay = 0.1f;  // on matrices only
  float clip_norm = 1.0f;     // of all gradients together (L2); 0: no clipping
};

class AdamWOptimizer {
 public:
  // The runner, of a whole model, outlives it. Moments start at zero.
  static absl::StatusOr<std::unique_ptr<AdamWOptimizer>> Create(ModelRunner& runner,
                                                                const AdamWOptions& options);

  // One step with the runner's gradients, which are zero afterwards. `step` counts from 1 (it
  // corrects the moments' bias). Enqueued on the runner's stream.
  void Step(int64_t step, float learning_rate);

  // L2 norm of the gradients that the last Step saw, before clipping. Waits for the device.
  // REQUIRES: clip_norm > 0 and a Step was made.
  absl::StatusOr<double> GradientNorm();

  // Layer i's moments, laid out as its parameters: for checkpoints.
  Tensor first_moment(int layer) const { return Flat(moments_[layer].first, layer); }
  Tensor second_moment(int layer) const { return Flat(moments_[layer].second, layer); }

 private:
  struct Moments {
    Buffer first, second;
  };

  AdamWOptimizer(ModelRunner& runner, const AdamWOptions& options)
      : runner_(runner), options_(options) {}
  Tensor Flat(const Buffer& buffer, int layer) const;
  Tensor MeasureClipScale();

  ModelRunner& runner_;
  const AdamWOptions options_;
  std::vector<Moments> moments_;
  Buffer scratch_;
  Tensor sum_of_squares_, scale_;
  Workspace workspace_;
};

}  // namespace atl

#endif  // ATOLL_WORKER_MODEL_OPTIMIZER_H_
