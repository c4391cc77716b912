#include "worker/pipeline/layer_copies.h"

#include <utility>

#include "worker/model/exec.h"

namespace atl::worker {

absl::StatusOr<bool> LayerCopies::Allocate(const std::vector<Tensor>& like, const HasRoom& room) {
  const auto carve = [&](void* memory) {
    Carver carver(memory);
    copies_.clear();
    for (const Tensor& tensor : like) {
      copies_.push_back(carver.Take(tensor.dtype, 1, tensor.size()));
    }
    return carver.bytes();
  };
  if (ready_ == nullptr) {
    ATOLL_ASSIGN_OR_RETURN(ready_, compute_->NewEvent());
  }
  const int64_t bytes = carve(nullptr);
  if (memory_.bytes() < bytes) {
    copies_.clear();
    if (!room(bytes - memory_.bytes())) return false;
    memory_ = Buffer();  // first: there may be no room for both
    absl::StatusOr<Buffer> memory = compute_->Allocate(bytes);
    if (absl::IsResourceExhausted(memory.status())) return false;
    ATOLL_RETURN_IF_ERROR(memory.status());
    memory_ = *std::move(memory);
  }
  carve(memory_.data());
  return true;
}

absl::StatusOr<bool> LayerCopies::Take(Stream& stream, const std::vector<Tensor>& from,
                                       const HasRoom& room) {
  ATOLL_ASSIGN_OR_RETURN(const bool allocated, Allocate(from, room));
  if (!allocated) return false;
  for (size_t i = 0; i < from.size(); ++i) {
    const Tensor flat(from[i].data, from[i].dtype, 1, from[i].size());
    compute_->Run(stream, Convert{flat, copies_[i]});
  }
  compute_->Record(stream, *ready_);
  return true;
}

// The device may still work on what was in this memory before.
absl::StatusOr<bool> LayerCopies::Prepare(Stream& stream, const std::vector<Tensor>& like,
                                          const HasRoom& room) {
  ATOLL_ASSIGN_OR_RETURN(const bool allocated, Allocate(like, room));
  if (allocated) compute_->Record(stream, *ready_);
  return allocated;
}

void LayerCopies::Drop() {
  copies_.clear();
  memory_ = Buffer();
}

absl::Status LayerCopies::Read(size_t index, int64_t begin, std::span<float> to) {
  return staging_->Read(copies_[index].Columns(begin, std::ssize(to)), *ready_, to);
}

absl::Status LayerCopies::Write(size_t index, std::span<const float> from) {
  return staging_->Write(copies_[index], *ready_, from);
}

}  // namespace atl::worker
