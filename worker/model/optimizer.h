// The optimizer inside an island, with gradient clipping, over the layers of one device: over the
// elements of each whose moments it has.

#ifndef ATOLL_WORKER_MODEL_OPTIMIZER_H_
#define ATOLL_WORKER_MODEL_OPTIMIZER_H_

#include <memory>
#include <span>
#include <vector>

#include "worker/model/host_reals.h"
#include "worker/model/layer_state.h"
#include "worker/model/update_rule.h"

namespace atl {

// The layers' states, made for training by this optimizer, and the backend outlive it, at their
// places in memory.
class Optimizer {
 public:
  static absl::StatusOr<std::unique_ptr<Optimizer>> Create(Backend& backend, Stream& stream,
                                                           std::vector<LayerState*> layers,
                                                           const OptimizerOptions& options);

  // Makes, for a model that is whole on this device, one step with its gradients, which are zero
  // afterwards. `step` counts from 1 (it corrects the moments' bias). Returns the gradients' L2
  // norm before clipping. Waits for the device.
  absl::StatusOr<double> Step(int64_t step, float learning_rate, int64_t samples = 1);

  // The same in parts, for a model on many devices, which sum up in between.
  // Adds up the squares of each layer's gradient, of the elements with moments; what all ranks of a
  // tensor-parallel group hold is rank 0's to count. Enqueued on the stream.
  void EnqueueSumsOfSquares(int rank = 0);
  // These sums, in the order of `layers`. REQUIRES: the device has made them.
  std::vector<double> sums_of_squares() const { return host_sums_.All(); }
  // See UpdateRule. Of each layer two numbers for each of its parameters, of the same elements.
  // Nothing but scratch memory is written. Waits for the device.
  bool has_norms() const { return rule_->has_norms(); }
  absl::StatusOr<std::vector<double>> Norms(int64_t step, double sum_of_squares, int rank = 0);
  // `sum_of_squares`: of all gradients of the model. `norms`: as Norms has them, of all owners; for
  // a rule without them empty. `samples`: of the whole step, whose gradients have been added up.
  // Enqueued on the stream. Without `keep_gradients` those of elements with moments are zero
  // afterwards.
  void Apply(int64_t step, float learning_rate, double sum_of_squares,
             std::span<const double> norms = {}, bool keep_gradients = false, int64_t samples = 1);

 private:
  Optimizer(Backend& backend, Stream& stream, std::vector<LayerState*> layers,
            const OptimizerOptions& options)
      : backend_(backend),
        stream_(stream),
        layers_(std::move(layers)),
        options_(options),
        rule_(NewUpdateRule(options)) {}
  absl::Status Allocate();
  Tensor ComputeClipScale(double sum_of_squares);
  int64_t norm_count() const;

  Backend& backend_;
  Stream& stream_;
  const std::vector<LayerState*> layers_;
  const OptimizerOptions options_;
  const std::unique_ptr<UpdateRule> rule_;
  Buffer scratch_;
  Tensor sums_, norms_, scale_;
  Workspace workspace_;
  HostReals host_sum_;  // in flight to the device
  HostReals host_sums_, host_norms_;
};

}  // namespace atl

#endif  // ATOLL_WORKER_MODEL_OPTIMIZER_H_
