// Counts what a backend has taken of a device's memory, and how much it may take: bookkeeping
// without a device.

#ifndef ATOLL_KERNELS_MEMORY_LEDGER_H_
#define ATOLL_KERNELS_MEMORY_LEDGER_H_

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "common/status.h"
#include "kernels/backend.h"

namespace atl {

// The bound of what the backends of one device may take together. Thread-safe.
class MemoryBound {
 public:
  explicit MemoryBound(int64_t limit_bytes) : limit_bytes_(limit_bytes) {}  // 0: no bound
  // False, and nothing is counted, where it would be too much.
  bool Take(int64_t bytes);
  void GiveBack(int64_t bytes) { in_use_bytes_ -= bytes; }
  int64_t in_use_bytes() const { return in_use_bytes_; }
  int64_t limit_bytes() const { return limit_bytes_; }

 private:
  const int64_t limit_bytes_;
  std::atomic<int64_t> in_use_bytes_ = 0;
};

class MemoryLedger {
 public:
  // `device`: for messages. `limit_bytes` 0: no bound.
  MemoryLedger(std::string device, int64_t limit_bytes)
      : MemoryLedger(std::move(device), std::make_shared<MemoryBound>(limit_bytes)) {}
  // A bound that others share.
  MemoryLedger(std::string device, std::shared_ptr<MemoryBound> bound)
      : device_(std::move(device)), bound_(std::move(bound)) {}

  // Counts a buffer that is about to be taken. RESOURCE_EXHAUSTED names the bytes wanted, those
  // held and the limit.
  absl::Status Take(int64_t bytes);
  // The device had no room for what Take counted: uncounts it and says so.
  absl::Status Refused(int64_t bytes, int64_t device_free_bytes);
  // Returns where the buffer lies; then its bytes are known when it is given back.
  void Placed(void* data, int64_t bytes) { buffers_[data] = bytes; }
  void GiveBack(void* data);

  // Returns the use by this one's buffers alone; the limit is of all that share it.
  MemoryUse use() const { return {in_use_bytes_, peak_bytes_, bound_->limit_bytes()}; }
  void ForgetPeak() { peak_bytes_ = in_use_bytes_; }

 private:
  const std::string device_;
  const std::shared_ptr<MemoryBound> bound_;
  int64_t in_use_bytes_ = 0, peak_bytes_ = 0;
  std::map<void*, int64_t> buffers_;
};

}  // namespace atl

#endif  // ATOLL_KERNELS_MEMORY_LEDGER_H_
