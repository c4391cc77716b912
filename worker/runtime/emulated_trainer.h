// A trainer that only takes time: for measurements of everything around training, when islands
// shall not share a core. A step sleeps a fixed time; "training" is a small pseudo-random walk of
// the parameters, made when somebody looks at them. Losses are 0. Never the default, and its name
// says what it is wherever workers are shown.

#ifndef ATOLL_WORKER_RUNTIME_EMULATED_TRAINER_H_
#define ATOLL_WORKER_RUNTIME_EMULATED_TRAINER_H_

#include <memory>

#include "common/time.h"
#include "worker/runtime/trainer.h"

namespace atl::worker {

// The model's sizes and the data's are the job's real ones. REQUIRES: step > 0.
std::unique_ptr<Trainer> NewEmulatedTrainer(Duration step);

}  // namespace atl::worker

#endif  // ATOLL_WORKER_RUNTIME_EMULATED_TRAINER_H_
