#include "common/net/payload.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>

#include "common/check.h"

namespace atl {
namespace {

constexpr int64_t kAlignment = 64;
constexpr int64_t kHugePage = int64_t{2} << 20;

int64_t RoundUp(int64_t size, int64_t unit) { return (size + unit - 1) / unit * unit; }

int64_t CapacityFor(int64_t size) {
  return RoundUp(std::max<int64_t>(size, 1), size >= kHugePage ? kHugePage : kAlignment);
}

std::byte* Allocate(int64_t capacity) {
  const bool huge = capacity >= kHugePage;
  void* memory = std::aligned_alloc(huge ? kHugePage : kAlignment, capacity);
  ATOLL_CHECK(memory != nullptr, "out of memory for a buffer of ", capacity, " bytes");
  if (huge) madvise(memory, capacity, MADV_HUGEPAGE);  // a hint; refusal costs only time
  return static_cast<std::byte*>(memory);
}

}  // namespace

Payload::~Payload() {
  if (pool_ != nullptr) pool_->Return(data_, size_);
}

std::shared_ptr<BufferPool> BufferPool::Create(int64_t idle_bytes_max) {
  return std::shared_ptr<BufferPool>(new BufferPool(idle_bytes_max));
}

BufferPool::~BufferPool() {
  for (const Idle& idle : idle_) std::free(idle.data);
}

Payload BufferPool::Take(int64_t size) {
  ATOLL_CHECK(size >= 0, size);
  const int64_t capacity = CapacityFor(size);
  {
    std::lock_guard lock(mutex_);
    // The most recently returned one is the likeliest to be in cache.
    for (auto it = idle_.rbegin(); it != idle_.rend(); ++it) {
      if (it->capacity != capacity) continue;
      std::byte* data = it->data;
      idle_.erase(std::next(it).base());
      idle_bytes_ -= capacity;
      return Payload(shared_from_this(), data, size);
    }
  }
  return Payload(shared_from_this(), Allocate(capacity), size);
}

void BufferPool::Return(std::byte* data, int64_t size) {
  const int64_t capacity = CapacityFor(size);
  if (capacity > idle_bytes_max_) return std::free(data);
  std::vector<std::byte*> surplus;
  {
    std::lock_guard lock(mutex_);
    idle_.push_back({capacity, data});
    idle_bytes_ += capacity;
    while (idle_bytes_ > idle_bytes_max_) {
      idle_bytes_ -= idle_.front().capacity;
      surplus.push_back(idle_.front().data);
      idle_.erase(idle_.begin());
    }
  }
  for (std::byte* memory : surplus) std::free(memory);
}

int64_t BufferPool::idle_bytes() const {
  std::lock_guard lock(mutex_);
  return idle_bytes_;
}

}  // namespace atl
