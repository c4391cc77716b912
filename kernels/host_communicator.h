// The base of communicators that reduce in host memory (threads, peer links): tensors in a device's
// memory go through pinned host memory, so that no implementation ever sees a pointer that it must
// not follow.

#ifndef ATOLL_KERNELS_HOST_COMMUNICATOR_H_
#define ATOLL_KERNELS_HOST_COMMUNICATOR_H_

#include "kernels/communicator.h"

namespace atl {

// Each call waits for the stream first, and has done its work when it returns. The pinned memory is
// as large as the largest tensor so far, and a backend's that called: one that cannot be read by
// the host outlives the communicator.
class HostCommunicator : public Communicator {
 public:
  absl::Status AllReduceSum(Backend& backend, Stream& stream, const Tensor& x) final {
    return AllReduce(backend, stream, x, Reduction::kSum);
  }
  absl::Status AllReduceMax(Backend& backend, Stream& stream, const Tensor& x) final {
    return AllReduce(backend, stream, x, Reduction::kMax);
  }
  absl::Status ReduceScatterSum(Backend& backend, Stream& stream, const Tensor& x,
                                const Cuts& cuts) final {
    return OnHost(backend, stream, x,
                  [&](const Tensor& host) { return ReduceScatterOnHost(host, cuts); });
  }
  absl::Status AllGather(Backend& backend, Stream& stream, const Tensor& x, const Cuts& cuts,
                         const Routes& routes) final {
    return OnHost(backend, stream, x,
                  [&](const Tensor& host) { return AllGatherOnHost(host, cuts, routes); });
  }

 protected:
  enum class Reduction { kSum, kMax };

  // `x` is contiguous and in host memory.
  virtual absl::Status ReduceOnHost(const Tensor& x, Reduction reduction) = 0;
  virtual absl::Status ReduceScatterOnHost(const Tensor& x, const Cuts& /*cuts*/) {
    return ReduceOnHost(x, Reduction::kSum);
  }
  virtual absl::Status AllGatherOnHost(const Tensor& x, const Cuts& cuts, const Routes& routes) = 0;

 private:
  absl::Status AllReduce(Backend& backend, Stream& stream, const Tensor& x, Reduction reduction) {
    return OnHost(backend, stream, x,
                  [&](const Tensor& host) { return ReduceOnHost(host, reduction); });
  }
  absl::Status OnHost(Backend& backend, Stream& stream, const Tensor& x,
                      const std::function<absl::Status(const Tensor& host)>& work);

  Buffer staging_;
};

}  // namespace atl

#endif  // ATOLL_KERNELS_HOST_COMMUNICATOR_H_
