// The part of NCCL that is used, and a group's member on top of it. Fault tolerance: the member
// decides what a failure means and when a group is aborted; behind NcclApi is NCCL (nccl.cc) or, in
// tests, threads.

#ifndef ATOLL_KERNELS_CUDA_NCCL_API_H_
#define ATOLL_KERNELS_CUDA_NCCL_API_H_

#include <memory>
#include <string>

#include "kernels/communicator.h"
#include "kernels/cuda/nccl.h"

namespace atl {

// Calls for one member come from one thread at a time, Begin and those that enqueue from the
// device's. None waits for other members.
class NcclApi {
 public:
  using Member = void*;
  virtual ~NcclApi() = default;

  virtual absl::StatusOr<std::string> NewId() = 0;
  // INVALID_ARGUMENT: not an id.
  virtual absl::StatusOr<Member> Begin(Backend& backend, const NcclGroup& group) = 0;
  // Returns whether Begin, or the newest collective, is enqueued; its work on the device may still
  // wait. An error is the group's end: UNAVAILABLE where another member was lost.
  virtual absl::StatusOr<bool> IsEnqueued(Member member) = 0;
  virtual absl::Status AllReduce(Member member, Backend& backend, Stream& stream, const Tensor& x,
                                 bool sum) = 0;
  // Does what Communicator's ReduceScatterSum does, and AllGather with all parts everywhere.
  virtual absl::Status ReduceScatter(Member member, Backend& backend, Stream& stream,
                                     const Tensor& x, const Cuts& cuts) = 0;
  virtual absl::Status AllGather(Member member, Backend& backend, Stream& stream, const Tensor& x,
                                 const Cuts& cuts) = 0;
  virtual absl::Status Send(Member member, Backend& backend, Stream& stream, const Tensor& x,
                            int to) = 0;
  virtual absl::Status Receive(Member member, Backend& backend, Stream& stream, const Tensor& x,
                               int from) = 0;
  // The member has failed, and what its streams wait for ends, with undefined results.
  virtual void Abort(Member member) = 0;
};

// Does what JoinNccl does; `api` outlives the member. REQUIRES: the backend ReportsFailures
// (kernels/async_failure.h).
absl::StatusOr<std::unique_ptr<Communicator>> JoinNcclBy(NcclApi& api, Backend& backend,
                                                         const NcclGroup& group);

}  // namespace atl

#endif  // ATOLL_KERNELS_CUDA_NCCL_API_H_
