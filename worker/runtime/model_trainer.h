// The trainer that computes: ModelRunner and AdamW on a backend.

#ifndef ATOLL_WORKER_RUNTIME_MODEL_TRAINER_H_
#define ATOLL_WORKER_RUNTIME_MODEL_TRAINER_H_

#include <memory>

#include "kernels/backend.h"
#include "worker/runtime/trainer.h"

namespace atl::worker {

std::unique_ptr<Trainer> NewModelTrainer(std::unique_ptr<Backend> backend);

}  // namespace atl::worker

#endif  // ATOLL_WORKER_RUNTIME_MODEL_TRAINER_H_
