// Communicators of the threads of one process, in host memory (see host_communicator.h).
//
// Each member sums its own slice of all tensors, in the order of ranks, and writes the result to
// all: no copies, no scratch memory, and one thread computes each element, so that all members have
// the same bits.

#ifndef ATOLL_KERNELS_THREAD_COMMUNICATOR_H_
#define ATOLL_KERNELS_THREAD_COMMUNICATOR_H_

#include <memory>
#include <vector>

#include "common/time.h"
#include "kernels/communicator.h"

namespace atl {

// The members of a group of `size` >= 1 threads, by rank. A call waits at most `timeout` for the
// others to come; once all are there it is theirs to finish. Tensors that do not match are a bug:
// CHECK. Members may outlive each other.
std::vector<std::unique_ptr<Communicator>> NewThreadCommunicators(int size, Duration timeout);

}  // namespace atl

#endif  // ATOLL_KERNELS_THREAD_COMMUNICATOR_H_
