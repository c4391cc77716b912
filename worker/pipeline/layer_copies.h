// Copies of a device's tensors in one block of its memory: what is in flight to the host (a
// snapshot of layers) or from it (what is to be added to their parameters) while the device goes on
// computing. Taking a snapshot and adding are short work of the device's own stream; the bus is
// crossed by Staging, on other streams.
//
// Threads: one that works the device, but for Read and Write, which are for any, while nothing else
// is called.

#ifndef ATOLL_WORKER_PIPELINE_LAYER_COPIES_H_
#define ATOLL_WORKER_PIPELINE_LAYER_COPIES_H_

#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "kernels/backend.h"
#include "worker/pipeline/staging.h"

namespace atl::worker {

class LayerCopies {
 public:
  // Returns whether the device has room for so many bytes more.
  using HasRoom = std::function<bool(int64_t bytes)>;

  // `compute` works the device and outlives this; `staging` crosses the bus.
  LayerCopies(Backend* compute, Staging* staging) : compute_(compute), staging_(staging) {}

  // Copies these contiguous tensors as they are when the stream has come to this point: returns
  // before that is done, and what follows on the stream does not change the copies. False: there is
  // no room, and there are no copies.
  absl::StatusOr<bool> Take(Stream& stream, const std::vector<Tensor>& from, const HasRoom& room);
  // Copies of these sizes and types instead, to be written.
  absl::StatusOr<bool> Prepare(Stream& stream, const std::vector<Tensor>& like,
                               const HasRoom& room);
  // Gives back their memory, which the next ones find otherwise.
  void Drop();

  const Tensor& copy(size_t index) const { return copies_[index]; }
  int64_t bytes() const { return memory_.bytes(); }

  // Copy `index` as floats, from or to the host: elements from `begin` on, or all. They return when
  // all is there.
  absl::Status Read(size_t index, int64_t begin, std::span<float> to);
  absl::Status Write(size_t index, std::span<const float> from);

 private:
  absl::StatusOr<bool> Allocate(const std::vector<Tensor>& like, const HasRoom& room);

  Backend* const compute_;
  Staging* const staging_;
  std::vector<Tensor> copies_;
  Buffer memory_;  // kept: what is freed may be waited for by the device
  std::unique_ptr<Event> ready_;
};

}  // namespace atl::worker

#endif  // ATOLL_WORKER_PIPELINE_LAYER_COPIES_H_
