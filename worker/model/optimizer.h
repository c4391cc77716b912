// AdamW with gradient clipping over the layers of one device: over the elements of each whose
// moments it has.

#ifndef ATOLL_WORKER_MODEL_OPTIMIZER_H_
#define ATOLL_WORKER_MODEL_OPTIMIZER_H_

#include <memory>
#include <vector>

#include "worker/model/host_reals.h"
#include "worker/model/layer_state.h"

namespace atl {

struct AdamWOptions {
  float beta1 = 0.9f;
  float beta2 = 0.95f;
  float epsilon = 1e-8f;
  float weight_decay = 0.1f;  // on matrices only
  float clip_norm = 1.0f;     // of all gradients together (L2); 0: no clipping

  bool operator==(const AdamWOptions&) const = default;
};

// The layers' states, made for training, and the backend outlive it, at their places in memory.
class AdamWOptimizer {
 public:
  static absl::StatusOr<std::unique_ptr<AdamWOptimizer>> Create(Backend& backend, Stream& stream,
                                                                std::vector<LayerState*> layers,
                                                                const AdamWOptions& options);

  // For a model that is whole on this device: one step with its gradients, which are zero
  // afterwards. `step` counts from 1 (it corrects the moments' bias). Returns the gradients' L2
  // norm before clipping. Waits for the device.
  absl::StatusOr<double> Step(int64_t step, float learning_rate);

  // The same in two halves, for a model on many devices, which sum up in between.
  // Sum of squares of each layer's gradient, of the elements with moments, in the order of
  // `layers`; what all ranks of a tensor-parallel group hold is rank 0's to count. Waits for the
  // device.
  absl::StatusOr<std::vector<double>> SumsOfSquares(int rank = 0);
  // `sum_of_squares`: of all gradients of the model. Enqueued on the stream. Without
  // `keep_gradients` those of elements with moments are zero afterwards.
  void Apply(int64_t step, float learning_rate, double sum_of_squares, bool keep_gradients = false);

 private:
  AdamWOptimizer(Backend& backend, Stream& stream, std::vector<LayerState*> layers,
                 const AdamWOptions& options)
      : backend_(backend), stream_(stream), layers_(std::move(layers)), options_(options) {}
  absl::Status Allocate();

  Backend& backend_;
  Stream& stream_;
  const std::vector<LayerState*> layers_;
  const AdamWOptions options_;
  Buffer scratch_;
  Tensor sums_, scale_;
  Workspace workspace_;
  HostReals host_sum_;  // on its way to the device
  HostReals host_sums_;
};

}  // namespace atl

#endif  // ATOLL_WORKER_MODEL_OPTIMIZER_H_
