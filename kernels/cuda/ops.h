// The operations of kernels/ops.h by our own kernels, and by a ProductEngine and an AttentionEngine
// where those take them. Memory, streams and events are the subclass's.

#ifndef ATOLL_KERNELS_CUDA_OPS_H_
#define ATOLL_KERNELS_CUDA_OPS_H_

#include "kernels/backend.h"
#include "kernels/cuda/declined.h"
#include "kernels/cuda/device/launchers.h"
#include "kernels/cuda/product.h"
#include "kernels/cuda/queue.h"

namespace atl::ATOLL_DEVICE {

// Fast products: cuBLASLt.
class ProductEngine {
 public:
  virtual ~ProductEngine() = default;
  // Returns the scratch memory that it needs for any product.
  virtual int64_t WorkspaceBytes() const = 0;
  // False: it does not do this one; nothing was enqueued.
  virtual bool Run(const Queue& queue, const Product& product, Workspace workspace) = 0;
};

// Fast attention: cuDNN. Each function returns false where it does not take shape, type or strides,
// having enqueued nothing. WorkspaceBytes are those of the shape, 0 where it is not taken.
class AttentionEngine {
 public:
  virtual ~AttentionEngine() = default;
  virtual int64_t WorkspaceBytes(const AttentionForward& op) = 0;
  virtual int64_t WorkspaceBytes(const AttentionBackward& op) = 0;
  virtual bool Run(const Queue& queue, const AttentionForward& op, Workspace workspace) = 0;
  virtual bool Run(const Queue& queue, const AttentionBackward& op, Workspace workspace) = 0;
};

class Ops : public Backend {
 public:
  using Backend::Run;
  using Backend::WorkspaceBytes;
#define ATOLL_OPERATION(Op) void Run(Stream&, const Op& op) override;
#define ATOLL_OPERATION_WITH_SCRATCH(Op)                         \
  void Run(Stream&, const Op& op, Workspace workspace) override; \
  int64_t WorkspaceBytes(const Op& op) const override;
  ATOLL_OPERATIONS(ATOLL_OPERATION, ATOLL_OPERATION_WITH_SCRATCH, ATOLL_OPERATION_WITH_SCRATCH,
                   ATOLL_OPERATION)
#undef ATOLL_OPERATION
#undef ATOLL_OPERATION_WITH_SCRATCH

  const Declined& declined() const { return declined_; }

 protected:
  // Either engine may be absent; they are the subclass's.
  void UseEngines(ProductEngine* products, AttentionEngine* attention) {
    products_ = products;
    attention_ = attention;
  }
  virtual Queue GetQueue(Stream& stream) = 0;
  Declined* mutable_declined() { return &declined_; }  // for the engines' reports

 private:
  bool TryProduct(const Queue& queue, const Product& product, Workspace workspace) {
    return products_ != nullptr && products_->Run(queue, product, workspace);
  }
  // A product without epilogue, by the first that takes it.
  void Multiply(const Queue& queue, const Product& product, Workspace workspace) {
    if (!TryProduct(queue, product, workspace)) Enqueue(queue, product);
  }
  int64_t ProductBytes() const { return products_ == nullptr ? 0 : products_->WorkspaceBytes(); }

  ProductEngine* products_ = nullptr;
  AttentionEngine* attention_ = nullptr;
  Declined declined_;
};

}  // namespace atl::ATOLL_DEVICE

#endif  // ATOLL_KERNELS_CUDA_OPS_H_
