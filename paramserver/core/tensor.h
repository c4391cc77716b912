// Parameters in memory that are read while they change: readers hold leases, the writer copies a
// tensor that is leased instead of changing it (copy on write, one shard at a time).

#ifndef ATOLL_PARAMSERVER_CORE_TENSOR_H_
#define ATOLL_PARAMSERVER_CORE_TENSOR_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <span>

#include "common/check.h"

namespace atl::ps {

// Immutable bytes and their owner.
struct SharedBytes {
  std::shared_ptr<const void> owner;
  std::span<const std::byte> bytes;
};

// A vector of fp32, aligned to 64 bytes. One thread owns it and may write it while there is no
// lease of it; leases may end on any thread.
class SharedTensor {
 public:
  // Its content is unspecified. REQUIRES: elements >= 0; the caller bounds it.
  explicit SharedTensor(int64_t elements)
      : data_(new (std::align_val_t(64)) float[static_cast<size_t>(elements)]),
        elements_(elements) {}
  ~SharedTensor() { operator delete[](data_, std::align_val_t(64)); }
  SharedTensor(const SharedTensor&) = delete;
  SharedTensor& operator=(const SharedTensor&) = delete;

  int64_t elements() const { return elements_; }
  int64_t bytes() const { return elements_ * static_cast<int64_t>(sizeof(float)); }
  std::span<const float> values() const { return {data_, static_cast<size_t>(elements_)}; }

  // REQUIRES: not leased.
  std::span<float> writable() {
    ATOLL_CHECK(!leased());
    return {data_, static_cast<size_t>(elements_)};
  }

  // Returns whether there are readers. Once false on the owner's thread, it stays so until the
  // owner leases again, and everything that former readers did has happened.
  bool leased() const { return readers_.load(std::memory_order_acquire) > 0; }

 private:
  friend class TensorLease;
  float* const data_;
  const int64_t elements_;
  std::atomic<int> readers_{0};
};

// Keeps a tensor alive and unchanged. Made on the owner's thread, dies anywhere.
class TensorLease {
 public:
  explicit TensorLease(std::shared_ptr<SharedTensor> tensor) : tensor_(std::move(tensor)) {
    tensor_->readers_.fetch_add(1, std::memory_order_relaxed);
  }
  ~TensorLease() { tensor_->readers_.fetch_sub(1, std::memory_order_release); }
  TensorLease(const TensorLease&) = delete;
  TensorLease& operator=(const TensorLease&) = delete;

  std::span<const float> values() const { return tensor_->values(); }

  // Returns the tensor, for the owner's thread alone: a restarted server goes on with its
  // snapshot's tensors.
  const std::shared_ptr<SharedTensor>& tensor() const { return tensor_; }

 private:
  std::shared_ptr<SharedTensor> tensor_;
};

}  // namespace atl::ps

#endif  // ATOLL_PARAMSERVER_CORE_TENSOR_H_
