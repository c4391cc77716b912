// The trainer that computes: ModelRunner and AdamW on a backend.

#ifndef ATOLL_WORKER_RUNTIME_MODEL_TRAINER_H_
#define ATOLL_WORKER_RUNTIME_MODEL_TRAINER_H_

#include <memory>

#include "kernels/backend.h"
#include "worker/runtime/trainer.h"

namespace atl::worker {

// `compute` is the type of activations; parameters, moments and gradients are fp32 in any case.
// REQUIRES: the backend supports it.
std::unique_ptr<Trainer> NewModelTrainer(std::unique_ptr<Backend> backend,
                                         DType compute = DType::kFloat32);

}  // namespace atl::worker

#endif  // ATOLL_WORKER_RUNTIME_MODEL_TRAINER_H_
