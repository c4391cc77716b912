#include "kernels/cuda/memory.h"

#include <algorithm>
#include <bit>

#include "common/check.h"

namespace atl {

absl::Status MemoryLedger::Take(int64_t bytes) {
  ATOLL_CHECK(bytes >= 0, "a buffer of ", bytes, " bytes");
  if (bytes > limit_bytes_ - in_use_bytes_) {
    return absl::ResourceExhaustedError(
        absl::StrCat("no memory for a buffer of ", bytes, " bytes on ", device_, ": ",
                     in_use_bytes_, " of the ", limit_bytes_, " bytes that may be used are taken"));
  }
  in_use_bytes_ += bytes;
  peak_bytes_ = std::max(peak_bytes_, in_use_bytes_);
  return absl::OkStatus();
}

absl::Status MemoryLedger::Refused(int64_t bytes, int64_t device_free_bytes) {
  in_use_bytes_ -= bytes;
  return absl::ResourceExhaustedError(
      absl::StrCat("no memory for a buffer of ", bytes, " bytes on ", device_, ": the device has ",
                   device_free_bytes, " bytes free, ", in_use_bytes_,
                   " are this process's; other processes may hold the rest"));
}

void MemoryLedger::GiveBack(void* data) {
  const auto buffer = buffers_.find(data);
  ATOLL_CHECK(buffer != buffers_.end(), "not a buffer of this device");
  in_use_bytes_ -= buffer->second;
  buffers_.erase(buffer);
}

BlockPool::~BlockPool() {
  ATOLL_CHECK(taken_.empty(), taken_.size(), " host buffers outlive their backend");
  for (auto& [size, blocks] : idle_) {
    for (void* block : blocks) release_(block);
  }
}

void* BlockPool::Take(int64_t bytes) {
  ATOLL_CHECK(bytes >= 0 && bytes <= int64_t{1} << 62);
  const auto size = static_cast<int64_t>(std::bit_ceil(std::max<uint64_t>(bytes, 4096)));
  void* block = nullptr;
  std::vector<void*>& idle = idle_[size];
  if (!idle.empty()) {
    block = idle.back();
    idle.pop_back();
    idle_bytes_ -= size;
  } else {
    block = get_(size);
  }
  if (block != nullptr) taken_[block] = size;
  return block;
}

void BlockPool::GiveBack(void* data) {
  const auto block = taken_.find(data);
  ATOLL_CHECK(block != taken_.end(), "not a block of this pool");
  const int64_t size = block->second;
  taken_.erase(block);
  if (idle_bytes_ + size > keep_bytes_) return release_(data);
  idle_[size].push_back(data);
  idle_bytes_ += size;
}

}  // namespace atl
