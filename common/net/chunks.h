// One tensor cut into chunks by its sender, and put together by its receiver. Both ends use both.

#ifndef ATOLL_COMMON_NET_CHUNKS_H_
#define ATOLL_COMMON_NET_CHUNKS_H_

#include <algorithm>
#include <atomic>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "common/net/frame.h"
#include "common/net/payload.h"
#include "common/net/socket.h"
#include "common/time.h"

namespace atl {

// Counts the bytes of one connection that were handed to libzmq and not yet released by it, and
// those of all connections in `total`. Few are enough to keep the kernel's buffer full, and what is
// few stays in the processor's cache from its checksum to its copy into the kernel.
class SendAccount {
 public:
  using Total = std::atomic<int64_t>;

  static constexpr int64_t kConnectionBytesMax = int64_t{4} << 20;

  // `wake` is called on libzmq's threads, until libzmq has released everything.
  SendAccount(std::shared_ptr<Total> total, int64_t total_max, std::function<void()> wake,
              int64_t connection_max)
      : total_(std::move(total)),
        total_max_(total_max),
        connection_max_(connection_max),
        wake_(std::move(wake)) {}

  // Returns whether to send a chunk now. If not, `wake` is called once when it is worth calling
  // again. Two chunks may always be on their way, so that no connection waits for others to move.
  bool Admits(int64_t chunk_bytes) {
    if (HasRoom(chunk_bytes)) return true;
    wake_at_ = std::max(connection_max_ / 2, chunk_bytes);
    return HasRoom(chunk_bytes);  // what was released meanwhile wakes no thread
  }
  int64_t bytes() const { return bytes_; }
  void Add(int64_t bytes) {
    bytes_ += bytes;
    *total_ += bytes;
  }
  void Release(int64_t bytes) {
    *total_ -= bytes;
    const int64_t left = bytes_ -= bytes;
    if (left <= wake_at_ && wake_at_.exchange(kNoneWaiting) != kNoneWaiting) wake_();
  }

 private:
  static constexpr int64_t kNoneWaiting = -1;

  bool HasRoom(int64_t chunk_bytes) const {
    const int64_t bytes = bytes_;
    if (bytes < 2 * chunk_bytes) return true;
    return bytes + chunk_bytes <= connection_max_ && *total_ + chunk_bytes <= total_max_;
  }

  std::atomic<int64_t> bytes_ = 0;
  std::atomic<int64_t> wake_at_ = kNoneWaiting;
  const std::shared_ptr<Total> total_;
  const int64_t total_max_;
  const int64_t connection_max_;
  const std::function<void()> wake_;
};

// Sends a tensor's chunks in order, from floats (not to be quantised) or from bytes as they are.
class OutgoingTensor {
 public:
  OutgoingTensor(std::span<const std::byte> bytes, std::shared_ptr<const void> owner,
                 int64_t chunk_bytes)
      : raw_(bytes), owner_(std::move(owner)), chunk_bytes_(chunk_bytes) {}
  OutgoingTensor(Encoding encoding, std::span<const float> values,
                 std::shared_ptr<const void> owner, int64_t chunk_bytes)
      : encoding_(encoding), values_(values), owner_(std::move(owner)), chunk_bytes_(chunk_bytes) {
    if (encoding == Encoding::kFloat32) raw_ = std::as_bytes(values);
  }

  int64_t chunk_count() const { return ChunkCount(total_bytes(), chunk_bytes_); }
  int64_t next() const { return next_; }
  void SkipTo(int64_t chunk) { next_ = chunk; }
  bool done() const { return next_ >= chunk_count(); }
  int64_t next_bytes() const;  // of the next chunk. REQUIRES: !done()
  int64_t left_bytes() const { return total_bytes() - next_ * chunk_bytes_; }  // REQUIRES: !done()

  // The next chunk's payload; its header goes into `chunk`. fp32 and bytes are read from where
  // they lie, bf16 is made in a buffer of `pool`. `account` counts it until libzmq lets go. What
  // is going to be sealed needs no checksum. REQUIRES: !done()
  Message Next(BufferPool& pool, const std::shared_ptr<SendAccount>& account, v1::Chunk* chunk,
               bool checksum);

 private:
  int64_t total_bytes() const {
    return std::max(static_cast<int64_t>(raw_.size()),
                    static_cast<int64_t>(values_.size()) * BytesPerElement(encoding_));
  }

  Encoding encoding_ = Encoding::kFloat32;
  std::span<const float> values_;
  std::span<const std::byte> raw_;  // unless they are to be encoded
  std::shared_ptr<const void> owner_;
  int64_t chunk_bytes_;
  int64_t next_ = 0;
};

// Receives a tensor's chunks.
class IncomingTensor {
 public:
  IncomingTensor(std::span<std::byte> bytes, int64_t chunk_bytes)
      : bytes_(bytes), chunk_bytes_(chunk_bytes) {}

  int64_t chunk_count() const { return ChunkCount(std::ssize(bytes_), chunk_bytes_); }
  int64_t next() const { return next_; }
  bool complete() const { return next_ >= chunk_count(); }
  void Restart() { next_ = 0; }

  // InvalidArgument: not the chunk that must come now, or not its size. DataLoss: its checksum is
  // wrong. Either way nothing is counted as received. A chunk with a tag has been opened.
  absl::Status Accept(const v1::Chunk& chunk, std::span<const std::byte> payload);
  // Accepts chunks in any order, each once. A tensor uses either this or Accept.
  absl::Status AcceptOnce(const v1::Chunk& chunk, std::span<const std::byte> payload);

 private:
  // REQUIRES: the tensor has a chunk of this index.
  absl::Status Take(const v1::Chunk& chunk, std::span<const std::byte> payload);

  std::span<std::byte> bytes_;
  int64_t chunk_bytes_;
  int64_t next_ = 0;
  std::vector<bool> accepted_;  // by AcceptOnce
};

// Checks a tensor of one chunk that stays where it is, as IncomingTensor::Accept does, but for its
// checksum.
absl::Status CheckOnlyChunk(const v1::Chunk& chunk, std::span<const std::byte> payload,
                            int64_t expected_bytes);

// Lets `rate` bytes per second pass on average, one chunk ahead of time at most. Rate 0: no limit.
class Pace {
 public:
  explicit Pace(double bytes_per_s) : bytes_per_s_(bytes_per_s) {}
  bool limited() const { return bytes_per_s_ > 0; }
  bool Ready(Instant now) const { return !limited() || now >= free_at_; }
  Instant free_at() const { return free_at_; }
  void Spend(int64_t bytes, Instant now) {
    if (!limited()) return;
    free_at_ = std::max(free_at_, now) + FromSeconds(static_cast<double>(bytes) / bytes_per_s_);
  }

 private:
  double bytes_per_s_;
  Instant free_at_ = Instant::min();
};

}  // namespace atl

#endif  // ATOLL_COMMON_NET_CHUNKS_H_
