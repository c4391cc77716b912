// The readable backend: plain loops on one thread, sums in double. It is the meaning of every
// operation, against which the fast backends are tested; not for training.

#ifndef ATOLL_KERNELS_TESTING_REFERENCE_REFERENCE_H_
#define ATOLL_KERNELS_TESTING_REFERENCE_REFERENCE_H_

#include <memory>

#include "kernels/backend.h"

namespace atl {

// Creates a backend in f32, bf16 or f64: the type of an operation's tensors.
std::unique_ptr<Backend> NewReferenceBackend();

}  // namespace atl

#endif  // ATOLL_KERNELS_TESTING_REFERENCE_REFERENCE_H_
