// The operations of kernels/ops.h by our own kernels, and by a ProductEngine and an AttentionEngine
// where those take them. Memory, streams and events are the subclass's.

#ifndef ATOLL_KERNELS_CUDA_OPS_H_
#define ATOLL_KERNELS_CUDA_OPS_H_

#include "kernels/backend.h"
#include "kernels/cuda/declined.h"
#include "kernels/cuda/launchers.h"
#include "kernels/cuda/product.h"
#include "kernels/cuda/queue.h"

namespace atl::ATOLL_DEVICE {

// Fast products: cuBLASLt.
class ProductEngine {
 public:
  virtual ~ProductEngine() = default;
  // What it wants for any product.
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
  void Run(Stream&, const LinearForward& op, Workspace) override;
  void Run(Stream&, const LinearBackwardInput& op, Workspace) override;
  void Run(Stream&, const LinearBackwardWeight& op, Workspace) override;
  int64_t WorkspaceBytes(const LinearForward& op) const override;
  int64_t WorkspaceBytes(const LinearBackwardInput& op) const override;
  int64_t WorkspaceBytes(const LinearBackwardWeight& op) const override;
  void Run(Stream&, const EmbeddingForward& op) override;
  void Run(Stream&, const EmbeddingBackwardWeight& op, Workspace) override;
  int64_t WorkspaceBytes(const EmbeddingBackwardWeight& op) const override;
  void Run(Stream&, const RmsNormForward& op) override;
  void Run(Stream&, const RmsNormBackwardInput& op) override;
  void Run(Stream&, const RmsNormBackwardWeight& op, Workspace) override;
  int64_t WorkspaceBytes(const RmsNormBackwardWeight& op) const override;
  void Run(Stream&, const LayerNormForward& op) override;
  void Run(Stream&, const LayerNormBackwardInput& op) override;
  void Run(Stream&, const LayerNormBackwardWeight& op, Workspace) override;
  int64_t WorkspaceBytes(const LayerNormBackwardWeight& op) const override;
  void Run(Stream&, const Rope& op) override;
  void Run(Stream&, const AttentionForward& op, Workspace) override;
  void Run(Stream&, const AttentionBackward& op, Workspace) override;
  int64_t WorkspaceBytes(const AttentionForward& op) const override;
  int64_t WorkspaceBytes(const AttentionBackward& op) const override;
  void Run(Stream&, const GatedForward& op) override;
  void Run(Stream&, const GatedBackward& op) override;
  void Run(Stream&, const GeluForward& op) override;
  void Run(Stream&, const GeluBackward& op) override;
  void Run(Stream&, const SoftcapForward& op) override;
  void Run(Stream&, const SoftcapBackward& op) override;
  void Run(Stream&, const AddScaled& op) override;
  void Run(Stream&, const Scale& op) override;
  void Run(Stream&, const Convert& op) override;
  void Run(Stream&, const CrossEntropy& op, Workspace) override;
  int64_t WorkspaceBytes(const CrossEntropy& op) const override;
  void Run(Stream&, const CrossEntropyMax& op) override;
  void Run(Stream&, const CrossEntropySums& op) override;
  void Run(Stream&, const AdamW& op) override;
  void Run(Stream&, const MomentumStep& op) override;
  void Run(Stream&, const LambStep& op) override;
  void Run(Stream&, const LambNorms& op, Workspace workspace) override;
  int64_t WorkspaceBytes(const LambNorms& op) const override;
  void Run(Stream&, const Normalize& op) override;
  void Run(Stream&, const SumOfSquares& op, Workspace) override;
  int64_t WorkspaceBytes(const SumOfSquares& op) const override;
  void Run(Stream&, const ClipScale& op) override;
  void Run(Stream&, const QuantizeDelta& op) override;
  void Run(Stream&, const DequantizeDelta& op) override;
  void Run(Stream&, const NesterovStep& op) override;
  void Run(Stream&, const PixelsForward& op) override;
  void Run(Stream&, const ConvForward& op, Workspace) override;
  int64_t WorkspaceBytes(const ConvForward& op) const override;
  void Run(Stream&, const ConvBackwardInput& op, Workspace) override;
  int64_t WorkspaceBytes(const ConvBackwardInput& op) const override;
  void Run(Stream&, const ConvBackwardWeight& op, Workspace) override;
  int64_t WorkspaceBytes(const ConvBackwardWeight& op) const override;
  void Run(Stream&, const BatchNormForward& op, Workspace) override;
  int64_t WorkspaceBytes(const BatchNormForward& op) const override;
  void Run(Stream&, const BatchNormBackwardInput& op, Workspace) override;
  int64_t WorkspaceBytes(const BatchNormBackwardInput& op) const override;
  void Run(Stream&, const BatchNormBackwardWeight& op) override;
  void Run(Stream&, const RunningMean& op) override;
  void Run(Stream&, const PoolForward& op) override;
  void Run(Stream&, const PoolBackward& op) override;
  void Run(Stream&, const ChannelGateForward& op) override;
  void Run(Stream&, const ChannelGateBackward& op) override;
  void Run(Stream&, const CountHits& op) override;

  const Declined& declined() const { return declined_; }

 protected:
  // Either engine may be absent; they are the subclass's.
  void UseEngines(ProductEngine* products, AttentionEngine* attention) {
    products_ = products;
    attention_ = attention;
  }
  virtual Queue QueueOf(Stream& stream) = 0;
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
