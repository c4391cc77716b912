// One layer of a model with memory of its own, run and timed. Internal to the profiler.

#ifndef ATOLL_WORKER_PROFILER_LAYER_BENCH_H_
#define ATOLL_WORKER_PROFILER_LAYER_BENCH_H_

#include <memory>
#include <optional>

#include "common/protocol/device_profile.h"
#include "common/status.h"
#include "kernels/backend.h"
#include "kernels/communicator.h"
#include "worker/model/loss_head.h"
#include "worker/model/optimizer.h"

namespace atl::worker {

class LayerBench {
 public:
  // Takes the memory for micro-batches of `shape`. `communicator` is null for a whole model; it,
  // backend and model outlive the bench.
  static absl::StatusOr<std::unique_ptr<LayerBench>> Create(Backend& backend, const Model& model,
                                                            int layer, const BatchShape& shape,
                                                            const OptimizerOptions& optimizer,
                                                            Communicator* communicator);

  // Runs F, B, W (of the head all in F, with the loss) once uncounted and then `runs` times, and
  // the optimizer as often. Every member of a tensor-parallel group calls it at the same time.
  // Without runs, nothing is computed: bytes alone, and no times.
  absl::StatusOr<LayerCost> Measure(int runs);

 private:
  LayerBench(Backend& backend, const Model& model, int layer, const BatchShape& shape,
             Communicator* communicator)
      : backend_(backend),
        model_(model),
        index_(layer),
        layer_(*model.layers()[layer]),
        shape_(shape),
        communicator_(communicator) {}

  bool first() const { return index_ == 0; }
  bool last() const { return index_ + 1 == static_cast<int>(model_.layers().size()); }
  absl::Status MakeState(const OptimizerOptions& options);
  absl::Status Allocate();
  void Carve(Carver& carver);
  absl::Status Fill();
  LayerCall Call() { return {backend_, *stream_, workspace_, shape_, constants_, communicator_}; }
  LayerMemory Memory() const;
  absl::Status Forward();
  absl::Status BackwardInput();
  absl::Status BackwardWeight();

  Backend& backend_;
  const Model& model_;
  const int index_;
  const Layer& layer_;
  const BatchShape shape_;
  Communicator* const communicator_;
  std::unique_ptr<Stream> stream_;
  Buffer memory_;
  LayerBytes bytes_;
  std::optional<LossHead> head_;  // of the last layer
  std::optional<LayerState> state_;
  std::unique_ptr<Optimizer> optimizer_;
  Tensor table_, table_grads_;  // of a tied head
  Tensor input_, output_, grad_output_, grad_input_, targets_, totals_, constants_;
  Stash stash_;
  Workspace workspace_;
};

}  // namespace atl::worker

#endif  // ATOLL_WORKER_PROFILER_LAYER_BENCH_H_
