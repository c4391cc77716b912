// Bookkeeping of the CUDA backend's memory, without a device.

#ifndef ATOLL_KERNELS_CUDA_MEMORY_H_
#define ATOLL_KERNELS_CUDA_MEMORY_H_

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "common/status.h"

namespace atl {

// What a backend has taken of a device's memory, and how much it may take.
class MemoryLedger {
 public:
  MemoryLedger(std::string device, int64_t limit_bytes)
      : device_(std::move(device)), limit_bytes_(limit_bytes) {}

  // Counts a buffer that is about to be taken. RESOURCE_EXHAUSTED names the bytes asked for, those
  // in use and the limit.
  absl::Status Take(int64_t bytes);
  // The device had no room for what Take counted: uncounts it and says so.
  absl::Status Refused(int64_t bytes, int64_t device_free_bytes);
  // Where the buffer lies; then its bytes are known when it is given back.
  void Placed(void* data, int64_t bytes) { buffers_[data] = bytes; }
  void GiveBack(void* data);

  int64_t in_use_bytes() const { return in_use_bytes_; }
  int64_t peak_bytes() const { return peak_bytes_; }

 private:
  const std::string device_;
  const int64_t limit_bytes_;
  int64_t in_use_bytes_ = 0, peak_bytes_ = 0;
  std::map<void*, int64_t> buffers_;
};

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
