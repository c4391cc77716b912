#include "kernels/cuda/memory.h"

#include <algorithm>
#include <bit>

#include "common/check.h"

namespace atl {

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
