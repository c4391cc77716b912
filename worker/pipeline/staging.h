// Copies between a device's memory and the host's that go on while the device computes: on
// streams of their own, through two blocks of pinned memory, of which one is copied by the device
// while the host reads or fills the other.
//
// Thread-safe; one copy at a time.

#ifndef ATOLL_WORKER_PIPELINE_STAGING_H_
#define ATOLL_WORKER_PIPELINE_STAGING_H_

#include <array>
#include <memory>
#include <mutex>
#include <span>

#include "kernels/backend.h"

namespace atl::worker {

class Staging {
 public:
  // Large enough for a bus to be at its best, and little compared to a host's memory.
  static constexpr int64_t kBlockBytes = int64_t{16} << 20;

  // `backend`: of the device, for this alone.
  explicit Staging(std::unique_ptr<Backend> backend, int64_t block_bytes = kBlockBytes)
      : backend_(std::move(backend)), block_bytes_(block_bytes) {}

  // All of a contiguous tensor of f32 or f64, as floats, once the device has passed `after`. They
  // return when all is copied. RESOURCE_EXHAUSTED: no memory for the blocks, which are taken by the
  // first copy and kept.
  absl::Status Read(const Tensor& from, const Event& after, std::span<float> to);
  absl::Status Write(const Tensor& to, const Event& after, std::span<const float> from);

 private:
  // A block and the stream of its copies.
  struct Lane {
    std::unique_ptr<Stream> stream;
    Buffer block;
  };

  absl::Status Begin(const Event& after);
  // Ends the work of both lanes; returns the first error of it and `status`.
  absl::Status End(absl::Status status);
  absl::Status ReadBlocks(const Tensor& from, std::span<float> to);
  absl::Status WriteBlocks(const Tensor& to, std::span<const float> from);

  const std::unique_ptr<Backend> backend_;
  const int64_t block_bytes_;
  std::mutex mutex_;
  std::array<Lane, 2> lanes_;  // guarded by mutex_
};

}  // namespace atl::worker

#endif  // ATOLL_WORKER_PIPELINE_STAGING_H_
