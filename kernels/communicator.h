// Collectives (all-reduce, reduce-scatter, all-gather) and point-to-point messages of a fixed group
// of devices, enqueued on a stream like operations. Implementations: threads of one process, peer
// links between workers, NCCL on GPUs.
//
// Contract, the same for every implementation:
// - Every member calls the same collectives in the same order with tensors of the same size.
// - Results have the same bits on all members and repeat from run to run: reductions have an order
//   fixed by group and size.
// - Tensors are contiguous and in the backend's memory. CPU implementations work inside the call,
//   and block until the other members are there; GPUs' may enqueue the work, and a failure then
//   shows when the stream is synchronised.
// - No call waits for ever: a member that is lost (or destroyed), Abort, or the timeout given at
//   creation ends it, and then it and all later calls return Unavailable, Aborted or
//   DeadlineExceeded with the reason, and the tensor's content is unspecified.
// - One thread at a time uses a communicator, but for Abort, which any thread may call.

#ifndef ATOLL_KERNELS_COMMUNICATOR_H_
#define ATOLL_KERNELS_COMMUNICATOR_H_

#include <functional>
#include <string>
#include <vector>

#include "common/status.h"
#include "kernels/backend.h"

namespace atl {

// A tensor cut among the members of a group: member r has elements [cuts[r], cuts[r + 1]), which
// may be none. size() + 1 ascending numbers, from 0 to the tensor's size.
using Cuts = std::vector<int64_t>;

// Returns whether member `from`'s part goes to member `to`, another one; all members say the same.
using Routes = std::function<bool(int from, int to)>;

class Communicator {
 public:
  virtual ~Communicator() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;

  // x <- sum, or maximum, over the members of x. f32; sums also f64, and bf16 where the backend has
  // it (added up in f32, rounded once). A NaN stays one.
  virtual absl::Status AllReduceSum(Backend& backend, Stream& stream, const Tensor& x) = 0;
  virtual absl::Status AllReduceMax(Backend& backend, Stream& stream, const Tensor& x) = 0;

  // Sums alone, each where it is wanted: a member's own part of x <- sum over the members of it;
  // the other parts are unspecified afterwards. With AllGather of all parts it moves no more bytes
  // than AllReduceSum does, where the implementation has it.
  virtual absl::Status ReduceScatterSum(Backend& backend, Stream& stream, const Tensor& x,
                                        const Cuts& cuts) {
    (void)cuts;
    return AllReduceSum(backend, stream, x);
  }
  // The parts of the others that are routed to this member are copied from them; its own stays. Of
  // parts that are not routed to it, either nothing changes or they are copied, too.
  virtual absl::Status AllGather(Backend& /*backend*/, Stream& /*stream*/, const Tensor& /*x*/,
                                 const Cuts& /*cuts*/, const Routes& /*routes*/) {
    return absl::UnimplementedError("this communicator only reduces");
  }

  // Send to and receive from one other member, which calls the other of the two; sizes match, and
  // so does the order of calls between two members. NCCL's alone has them: UNIMPLEMENTED.
  virtual absl::Status Send(Backend& /*backend*/, Stream& /*stream*/, const Tensor& /*x*/,
                            int /*to*/) {
    return absl::UnimplementedError("this communicator only reduces");
  }
  virtual absl::Status Receive(Backend& /*backend*/, Stream& /*stream*/, const Tensor& /*x*/,
                               int /*from*/) {
    return absl::UnimplementedError("this communicator only reduces");
  }

  // Ends the call that waits, if any, and all later ones: on this member with ABORTED and the
  // reason, on the others with that or, where they only see this member fail, UNAVAILABLE.
  virtual void Abort(const std::string& reason) = 0;
};

}  // namespace atl

#endif  // ATOLL_KERNELS_COMMUNICATOR_H_
