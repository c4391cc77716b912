// Bookkeeping of pinned host memory, without a device.

#ifndef ATOLL_KERNELS_CUDA_MEMORY_H_
#define ATOLL_KERNELS_CUDA_MEMORY_H_

#include <cstdint>
#include <functional>
#include <map>
#include <vector>

namespace atl {

// Host memory that is costly to get: blocks that are given back are kept, by size rounded up to a
// power of two, until more than `keep_bytes` lie idle.
class BlockPool {
 public:
  using Get = std::function<void*(int64_t bytes)>;  // null: no memory
  using Release = std::function<void(void*)>;
  BlockPool(int64_t keep_bytes, Get get, Release release)
      : keep_bytes_(keep_bytes), get_(std::move(get)), release_(std::move(release)) {}
  ~BlockPool();
  BlockPool(const BlockPool&) = delete;
  BlockPool& operator=(const BlockPool&) = delete;

  void* Take(int64_t bytes);  // null: no memory. Aligned as `get` aligns
  void GiveBack(void* data);

  int64_t idle_bytes() const { return idle_bytes_; }

 private:
  const int64_t keep_bytes_;
  const Get get_;
  const Release release_;
  std::map<int64_t, std::vector<void*>> idle_;  // by size
  std::map<void*, int64_t> taken_;
  int64_t idle_bytes_ = 0;
};

}  // namespace atl

#endif  // ATOLL_KERNELS_CUDA_MEMORY_H_
