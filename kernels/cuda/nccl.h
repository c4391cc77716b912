// Communicators between GPUs, by NCCL. A build without --config=cuda has these functions too; they
// say that it has no CUDA.

#ifndef ATOLL_KERNELS_CUDA_NCCL_H_
#define ATOLL_KERNELS_CUDA_NCCL_H_

#include <functional>
#include <memory>
#include <string>

#include "common/time.h"
#include "kernels/communicator.h"

namespace atl {

struct NcclGroup {
  std::string name;  // for messages
  std::string id;    // from NewNcclId, the same on all members
  int rank = 0;
  int size = 1;
  Duration timeout{};  // longest wait: of joining, and for any one collective to be done
  // Polled while joining waits, and only then; true ends it with ABORTED. May be null.
  std::function<bool()> given_up;
};

// "2.27.3"; empty: this build has none. Members of one group have the same.
std::string NcclVersion();

// Makes the id of a group, which one member hands to the others: some bytes that name the group and
// say where to meet. The network is NCCL's to find; its connections are neither encrypted nor
// authenticated.
absl::StatusOr<std::string> NewNcclId();

// Joins, and waits for the others until the timeout: DEADLINE_EXCEEDED. `backend` is a CUDA backend
// and outlives the communicator, which works on its device alone; collectives may be enqueued by
// other backends of the same device.
//
// Collectives are enqueued and return at once, so a failure shows later: a lost member, a
// collective that is not done in time, or Abort ends what the stream waits for, the stream's next
// Backend::Synchronize returns the reason, and so do all later calls of the communicator.
// Abort never waits for NCCL: what that blocks is released on a thread of the communicator. It also
// ends the first send or receive between two members, which connects them and waits for both.
//
// Sends and receives between two members match by their order, and are best on streams of their
// own: each waits for the other side. Reductions are NCCL's, in an order that it chooses by group
// and size; bf16 is summed by NCCL as bf16.
absl::StatusOr<std::unique_ptr<Communicator>> JoinNccl(Backend& backend, const NcclGroup& group);

}  // namespace atl

#endif  // ATOLL_KERNELS_CUDA_NCCL_H_
