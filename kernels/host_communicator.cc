#include "kernels/host_communicator.h"

namespace atl {

absl::Status HostCommunicator::OnHost(Backend& backend, Stream& stream, const Tensor& x,
                                      const std::function<absl::Status(const Tensor& host)>& work) {
  ATOLL_CHECK(x.contiguous(), "collectives work on contiguous tensors");
  if (backend.memory_on_host() || x.size() == 0) {
    ATOLL_RETURN_IF_ERROR(backend.Synchronize(stream));
    return work(x);
  }
  const int64_t bytes = x.size() * GetElementSize(x.dtype);
  if (staging_.bytes() < bytes) {
    ATOLL_ASSIGN_OR_RETURN(staging_, backend.AllocateHost(bytes));
  }
  const Tensor staged(staging_.data(), x.dtype, 1, x.size());
  backend.CopyToHost(stream, staged.data, x);
  ATOLL_RETURN_IF_ERROR(backend.Synchronize(stream));
  ATOLL_RETURN_IF_ERROR(work(staged));
  backend.CopyToDevice(stream, x, staged.data);
  return backend.Synchronize(stream);
}

}  // namespace atl
