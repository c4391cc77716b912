// The single-device reference that islands are compared with: ModelRunner and an optimizer on one
// backend, without plan, members or saves.

#ifndef ATOLL_WORKER_RUNTIME_TESTING_MODEL_TRAINER_H_
#define ATOLL_WORKER_RUNTIME_TESTING_MODEL_TRAINER_H_

#include <memory>
#include <span>

#include "kernels/backend.h"
#include "worker/runtime/trainer.h"

namespace atl::worker {

class ModelTrainer : public Trainer {
 public:
  // One layer's parameters and moments, to and from host memory of exactly the layer's size.
  virtual absl::Status GetParameters(int layer, std::span<float> out) = 0;
  virtual absl::Status SetParameters(int layer, std::span<const float> values) = 0;
  virtual absl::Status GetMoments(int layer, std::span<float> first, std::span<float> second) = 0;
};

std::unique_ptr<ModelTrainer> NewModelTrainer(std::unique_ptr<Backend> backend);

}  // namespace atl::worker

#endif  // ATOLL_WORKER_RUNTIME_TESTING_MODEL_TRAINER_H_
