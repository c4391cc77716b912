// How layers call operations: one description of the work both measures it and does it.

#ifndef ATOLL_WORKER_MODEL_EXEC_H_
#define ATOLL_WORKER_MODEL_EXEC_H_

#include <algorithm>
#include <cstdint>

#include "kernels/backend.h"
#include "kernels/communicator.h"

namespace atl {

// Hands out tensors one after the other from one block of memory, each aligned to 64 bytes. Without
// memory (null) it hands out tensors without data and only counts.
class Carver {
 public:
  explicit Carver(void* memory) : memory_(static_cast<char*>(memory)) {}

  Tensor Take(DType dtype, int64_t rows, int64_t cols) {
    Tensor tensor(memory_ == nullptr ? nullptr : memory_ + bytes_, dtype, rows, cols);
    bytes_ += (tensor.size() * GetElementSize(dtype) + 63) / 64 * 64;
    return tensor;
  }
  // The same with rows that begin on multiples of 8 elements, whatever `cols` is: products read and
  // write such rows several elements at a time. Not contiguous where cols is no such multiple.
  Tensor TakeAlignedRows(DType dtype, int64_t rows, int64_t cols) {
    return Take(dtype, rows, (cols + 7) / 8 * 8).Columns(0, cols);
  }
  void* Bytes(int64_t bytes) { return Take(DType::kInt32, 1, (bytes + 3) / 4).data; }

  int64_t bytes() const { return bytes_; }

 private:
  char* memory_;
  int64_t bytes_ = 0;
};

// Runs operations on a stream, or, while measuring, only finds the workspace they need. A layer's
// temporaries are at the start of the workspace; the operations' own scratch follows. After a
// collective that failed nothing more is run.
class Exec {
 public:
  // `communicator`: of the tensor-parallel group; null for a group of one.
  Exec(Backend& backend, Stream& stream, Workspace workspace, Communicator* communicator = nullptr)
      : backend_(backend), stream_(&stream), workspace_(workspace), communicator_(communicator) {}
  static Exec Measuring(Backend& backend) { return Exec(backend); }

  bool measuring() const { return stream_ == nullptr; }

  template <typename Op>
  void Run(const Op& op) {
    if (!status_.ok()) return;
    if constexpr (requires(Backend & b) { b.WorkspaceBytes(op); }) {
      if (measuring()) {
        needed_ = std::max(needed_, temporaries_ + backend_.WorkspaceBytes(op));
      } else {
        backend_.Run(
            *stream_, op,
            {static_cast<char*>(workspace_.data) + temporaries_, workspace_.bytes - temporaries_});
      }
    } else if (!measuring()) {
      backend_.Run(*stream_, op);
    }
  }

  void Zero(const Tensor& x) {
    if (!measuring() && status_.ok()) backend_.Zero(*stream_, x);
  }

  // x <- its sum, or maximum, over the group.
  void AllReduceSum(const Tensor& x) {
    if (communicates()) status_ = communicator_->AllReduceSum(backend_, *stream_, x);
  }
  void AllReduceMax(const Tensor& x) {
    if (communicates()) status_ = communicator_->AllReduceMax(backend_, *stream_, x);
  }

  const absl::Status& status() const { return status_; }

  // Memory until this Exec dies. Without data while measuring.
  Tensor Temporary(DType dtype, int64_t rows, int64_t cols) {
    Carver carver(measuring() ? nullptr : static_cast<char*>(workspace_.data) + temporaries_);
    const Tensor tensor = carver.Take(dtype, rows, cols);
    temporaries_ += carver.bytes();
    needed_ = std::max(needed_, temporaries_);
    ATOLL_CHECK(measuring() || temporaries_ <= workspace_.bytes, "workspace of ", workspace_.bytes,
                " bytes is too small");
    return tensor;
  }

  int64_t needed_bytes() const { return needed_; }

 private:
  explicit Exec(Backend& backend) : backend_(backend), stream_(nullptr) {}

  bool communicates() const { return !measuring() && communicator_ != nullptr && status_.ok(); }

  Backend& backend_;
  Stream* stream_;
  Workspace workspace_;
  Communicator* communicator_ = nullptr;
  absl::Status status_;
  int64_t temporaries_ = 0;
  int64_t needed_ = 0;
};

}  // namespace atl

#endif  // ATOLL_WORKER_MODEL_EXEC_H_
