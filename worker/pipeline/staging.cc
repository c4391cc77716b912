#include "worker/pipeline/staging.h"

#include <algorithm>
#include <cstring>

#include "common/check.h"

namespace atl::worker {
namespace {

void FromBlock(const void* block, DType dtype, std::span<float> to) {
  if (dtype == DType::kFloat32) {
    std::memcpy(to.data(), block, to.size_bytes());
    return;
  }
  const auto* wide = static_cast<const double*>(block);
  std::transform(wide, wide + to.size(), to.begin(),
                 [](double x) { return static_cast<float>(x); });
}

void ToBlock(std::span<const float> from, DType dtype, void* block) {
  if (dtype == DType::kFloat32) {
    std::memcpy(block, from.data(), from.size_bytes());
  } else {
    std::copy(from.begin(), from.end(), static_cast<double*>(block));
  }
}

}  // namespace

absl::Status Staging::Begin(const Event& after) {
  for (Lane& lane : lanes_) {
    if (lane.stream == nullptr) {
      ATOLL_ASSIGN_OR_RETURN(lane.stream, backend_->NewStream());
    }
    if (lane.block.bytes() == 0) {
      ATOLL_ASSIGN_OR_RETURN(lane.block, backend_->AllocateHost(block_bytes_));
    }
    backend_->Wait(*lane.stream, after);
  }
  return absl::OkStatus();
}

absl::Status Staging::End(absl::Status status) {
  for (Lane& lane : lanes_) {
    if (lane.stream != nullptr) status.Update(backend_->Synchronize(*lane.stream));
  }
  return status;
}

absl::Status Staging::Read(const Tensor& from, const Event& after, std::span<float> to) {
  ATOLL_CHECK(from.contiguous() && from.size() == static_cast<int64_t>(to.size()));
  const std::lock_guard lock(mutex_);
  absl::Status status = Begin(after);
  if (status.ok()) status = ReadBlocks(from, to);
  return End(std::move(status));
}

absl::Status Staging::Write(const Tensor& to, const Event& after, std::span<const float> from) {
  ATOLL_CHECK(to.contiguous() && to.size() == static_cast<int64_t>(from.size()));
  const std::lock_guard lock(mutex_);
  absl::Status status = Begin(after);
  if (status.ok()) status = WriteBlocks(to, from);
  return End(std::move(status));
}

absl::Status Staging::ReadBlocks(const Tensor& from, std::span<float> to) {
  const Tensor flat(from.data, from.dtype, 1, from.size());
  const int64_t each = block_bytes_ / GetElementSize(from.dtype), size = from.size();
  const auto elements = [&](int64_t begin) { return std::min(each, size - begin); };
  for (int64_t begin = 0; begin - each < size; begin += each) {
    if (begin < size) {
      Lane& next = lanes_[static_cast<size_t>(begin / each % 2)];
      backend_->CopyToHost(*next.stream, next.block.data(), flat.Columns(begin, elements(begin)));
    }
    const int64_t before = begin - each;  // is on its way, or there
    if (before < 0) continue;
    Lane& lane = lanes_[static_cast<size_t>(before / each % 2)];
    ATOLL_RETURN_IF_ERROR(backend_->Synchronize(*lane.stream));
    FromBlock(lane.block.data(), from.dtype,
              to.subspan(static_cast<size_t>(before), static_cast<size_t>(elements(before))));
  }
  return absl::OkStatus();
}

absl::Status Staging::WriteBlocks(const Tensor& to, std::span<const float> from) {
  const Tensor flat(to.data, to.dtype, 1, to.size());
  const int64_t each = block_bytes_ / GetElementSize(to.dtype), size = to.size();
  for (int64_t begin = 0; begin < size; begin += each) {
    const int64_t elements = std::min(each, size - begin);
    Lane& lane = lanes_[static_cast<size_t>(begin / each % 2)];
    ATOLL_RETURN_IF_ERROR(backend_->Synchronize(*lane.stream));  // its last block has left
    ToBlock(from.subspan(static_cast<size_t>(begin), static_cast<size_t>(elements)), to.dtype,
            lane.block.data());
    backend_->CopyToDevice(*lane.stream, flat.Columns(begin, elements), lane.block.data());
  }
  return absl::OkStatus();
}

}  // namespace atl::worker
