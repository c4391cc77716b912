// Memory for whole tensors, kept for use again: touching fresh pages costs about as much as
// receiving the bytes that go into them.

#ifndef ATOLL_COMMON_NET_PAYLOAD_H_
#define ATOLL_COMMON_NET_PAYLOAD_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <utility>
#include <vector>

namespace atl {

class BufferPool;

// An owned, contiguous buffer. Moves, does not copy. A pool's is aligned to 64 bytes and goes back
// there when it dies, on whatever thread that happens; it may outlive its maker.
class Payload {
 public:
  Payload() = default;
  // Memory of another owner, aligned as it is.
  Payload(std::shared_ptr<void> owner, std::span<std::byte> bytes)
      : owner_(std::move(owner)), data_(bytes.data()), size_(std::ssize(bytes)) {}
  Payload(Payload&& other) noexcept
      : pool_(std::move(other.pool_)),
        owner_(std::move(other.owner_)),
        data_(std::exchange(other.data_, nullptr)),
        size_(std::exchange(other.size_, 0)) {}
  Payload& operator=(Payload&& other) noexcept {
    std::swap(pool_, other.pool_);
    std::swap(owner_, other.owner_);
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    return *this;
  }
  ~Payload();

  int64_t size() const { return size_; }  // bytes
  std::byte* data() { return data_; }
  const std::byte* data() const { return data_; }
  std::span<const std::byte> bytes() const { return {data_, static_cast<size_t>(size_)}; }

 private:
  friend class BufferPool;
  Payload(std::shared_ptr<BufferPool> pool, std::byte* data, int64_t size)
      : pool_(std::move(pool)), data_(data), size_(size) {}

  std::shared_ptr<BufferPool> pool_;  // or
  std::shared_ptr<void> owner_;
  std::byte* data_ = nullptr;
  int64_t size_ = 0;
};

// Hands out Payloads and keeps up to `idle_bytes_max` bytes of returned ones. Thread-safe.
class BufferPool : public std::enable_shared_from_this<BufferPool> {
 public:
  static std::shared_ptr<BufferPool> Create(int64_t idle_bytes_max);
  ~BufferPool();
  BufferPool(const BufferPool&) = delete;
  BufferPool& operator=(const BufferPool&) = delete;

  // A buffer with unspecified content. REQUIRES: size >= 0. The caller bounds size.
  Payload Take(int64_t size);

  int64_t idle_bytes() const;

 private:
  friend class Payload;
  explicit BufferPool(int64_t idle_bytes_max) : idle_bytes_max_(idle_bytes_max) {}
  void Return(std::byte* data, int64_t size);

  struct Idle {
    int64_t capacity;
    std::byte* data;
  };
  const int64_t idle_bytes_max_;
  mutable std::mutex mutex_;
  std::vector<Idle> idle_;  // guarded by mutex_; least recently returned first
  int64_t idle_bytes_ = 0;  // guarded by mutex_
};

}  // namespace atl

#endif  // ATOLL_COMMON_NET_PAYLOAD_H_
