// How much of what one member sends to another the link has not passed on yet, and copies of parts
// that count as that for as long as the link reads them. Thread-safe.

#ifndef ATOLL_WORKER_COLLECTIVES_UNSENT_H_
#define ATOLL_WORKER_COLLECTIVES_UNSENT_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>

#include "worker/collectives/peer_blocks.h"

namespace atl::worker {

// The most bytes of parts to one member that libzmq has not passed to the kernel yet. More would
// fill no gap, and a copy leaves the processor's cache before the kernel reads it.
inline constexpr int64_t kUnsentBytesMax = 2 * kBlockBytesMax;

// Counts the bytes of parts to one member that the link still reads.
class Unsent {
 public:
  explicit Unsent(PeerBlocks* blocks) : blocks_(*blocks) {}

  // If not, a TakeUnless that waits is woken when there is.
  bool HasRoom() {
    if (bytes_ < kUnsentBytesMax) return true;
    wanted_ = true;
    return bytes_ < kUnsentBytesMax;
  }
  void Add(int64_t bytes) { bytes_ += bytes; }
  void Release(int64_t bytes) {
    bytes_ -= bytes;
    if (bytes_ < kUnsentBytesMax && wanted_.exchange(false)) blocks_.Wake();
  }

 private:
  PeerBlocks& blocks_;
  std::atomic<int64_t> bytes_ = 0;
  std::atomic<bool> wanted_ = false;
};

// A copy of what is sent, since it must outlive a call that fails.
struct PartCopy {
  PartCopy(Payload bytes, std::shared_ptr<Unsent> counted)
      : payload(std::move(bytes)), unsent(std::move(counted)) {
    unsent->Add(payload.size());
  }
  ~PartCopy() {
    const int64_t bytes = payload.size();
    payload = Payload();  // first: the woken thread takes it
    unsent->Release(bytes);
  }
  PartCopy(const PartCopy&) = delete;
  PartCopy& operator=(const PartCopy&) = delete;

  Payload payload;
  const std::shared_ptr<Unsent> unsent;
};

}  // namespace atl::worker

#endif  // ATOLL_WORKER_COLLECTIVES_UNSENT_H_
