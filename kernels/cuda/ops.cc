#include "kernels/cuda/ops.h"

#include <algorithm>

namespace atl::ATOLL_DEVICE {
namespace {

// A window that no sequence is longer than hides nothing, and cuDNN takes what hides nothing.
template <typename Op>
Op WithoutIdleWindow(Op op) {
  if (op.shape.window >= op.shape.seq_len) op.shape.window = 0;
  return op;
}

// ---- A vocabulary may have any size, and products are much slower where it is no multiple of 8,
// however far apart its rows are (GPT-2 with 50,257 instead of 50,304: a step of 50 instead of
// 31 ms on an H200, PyTorch's alike). So the outputs beyond the last multiple come apart. ----

constexpr int64_t kManyOutputs = 4096;

int64_t EvenOutputs(int64_t outputs) { return outputs < kManyOutputs ? outputs : outputs / 8 * 8; }

Tensor Columns(const Tensor& x, int64_t first, int64_t count) {
  return x.present() ? x.Columns(first, count) : x;
}

LinearForward OfOutputs(LinearForward op, int64_t first, int64_t count) {
  op.w = op.w.Rows(first, count);
  for (Tensor* x : {&op.y, &op.bias, &op.add, &op.pre}) *x = Columns(*x, first, count);
  return op;
}

LinearBackwardInput OfOutputs(LinearBackwardInput op, int64_t first, int64_t count) {
  op.dy = Columns(op.dy, first, count);
  op.w = op.w.Rows(first, count);
  return op;
}

LinearBackwardWeight OfOutputs(LinearBackwardWeight op, int64_t first, int64_t count) {
  op.dy = Columns(op.dy, first, count);
  op.dw = op.dw.Rows(first, count);
  op.dbias = Columns(op.dbias, first, count);
  return op;
}

}  // namespace

// ---- Linear ----

void Ops::Run(Stream& stream, const LinearForward& op, Workspace workspace) {
  op.Check();
  const int64_t outputs = op.w.rows, even = EvenOutputs(outputs);
  if (even < outputs) {
    Run(stream, OfOutputs(op, 0, even), workspace);
    return Run(stream, OfOutputs(op, even, outputs - even), workspace);
  }
  const Queue queue = GetQueue(stream);
  const Product fused = MakeFusedProduct(op);
  const bool all = op.activation == Activation::kNone || fused.epilogue != Epilogue::kNone;
  if (all && TryProduct(queue, fused, workspace)) return;
  const Product plain = MakeProduct(op);
  Multiply(queue, plain, workspace);
  if (op.activation != Activation::kNone || op.bias.present()) {
    FinishForward finish{.raw = plain.d, .bias = op.bias, .y = op.y, .activation = op.activation};
    if (op.activation != Activation::kNone) {
      finish.add = op.add;
      finish.pre = op.bias.present() ? op.pre : Tensor();
    }
    Enqueue(queue, finish);
  }
}

void Ops::Run(Stream& stream, const LinearBackwardInput& op, Workspace workspace) {
  op.Check();
  const int64_t outputs = op.w.rows, even = EvenOutputs(outputs);
  if (even < outputs && op.activation == Activation::kNone) {
    // The small part first: what rounding takes from it is little.
    Run(stream, OfOutputs(op, even, outputs - even), workspace);
    LinearBackwardInput rest = OfOutputs(op, 0, even);
    rest.add = op.dx;
    return Run(stream, rest, workspace);
  }
  const Queue queue = GetQueue(stream);
  const Product fused = MakeFusedProduct(op);
  const bool all = op.activation == Activation::kNone || fused.epilogue != Epilogue::kNone;
  if (all && TryProduct(queue, fused, workspace)) return;
  Multiply(queue, MakeProduct(op), workspace);
  if (op.activation == Activation::kNone) return;
  Enqueue(
      queue,
      FinishBackward{
          .raw = op.dx, .add = op.add, .dx = op.dx, .activation = op.activation, .pre = op.pre});
}

void Ops::Run(Stream& stream, const LinearBackwardWeight& op, Workspace workspace) {
  op.Check();
  const int64_t outputs = op.dy.cols, even = EvenOutputs(outputs);
  if (even < outputs) {
    Run(stream, OfOutputs(op, 0, even), workspace);
    return Run(stream, OfOutputs(op, even, outputs - even), workspace);
  }
  const Queue queue = GetQueue(stream);
  Multiply(queue, MakeProduct(op), workspace);
  // By itself: cuBLASLt's sums, in a kernel of their own too, take nearly twice as long (H200).
  if (op.dbias.present()) Enqueue(queue, SumRows{.x = op.dy, .sum = op.dbias}, workspace);
}

int64_t Ops::WorkspaceBytes(const LinearForward&) const { return ProductBytes(); }
int64_t Ops::WorkspaceBytes(const LinearBackwardInput&) const { return ProductBytes(); }
int64_t Ops::WorkspaceBytes(const LinearBackwardWeight& op) const {
  // Requested with shapes alone, so whether there is a bias cannot be seen.
  return std::max(ProductBytes(), ScratchBytes(SumRows{.x = op.dy, .sum = {}}));
}

// ---- Attention ----

void Ops::Run(Stream& stream, const AttentionForward& op, Workspace workspace) {
  op.Check();
  const Queue queue = GetQueue(stream);
  const AttentionForward whole = WithoutIdleWindow(op);
  if (attention_ == nullptr || !attention_->Run(queue, whole, workspace)) Enqueue(queue, whole);
}

void Ops::Run(Stream& stream, const AttentionBackward& op, Workspace workspace) {
  op.Check();
  const Queue queue = GetQueue(stream);
  const AttentionBackward whole = WithoutIdleWindow(op);
  if (attention_ == nullptr || !attention_->Run(queue, whole, workspace)) {
    Enqueue(queue, whole, workspace);
  }
}

int64_t Ops::WorkspaceBytes(const AttentionForward& op) const {
  return attention_ == nullptr ? 0 : attention_->WorkspaceBytes(WithoutIdleWindow(op));
}

int64_t Ops::WorkspaceBytes(const AttentionBackward& op) const {
  const int64_t own = ScratchBytes(op);
  return attention_ == nullptr ? own
                               : std::max(own, attention_->WorkspaceBytes(WithoutIdleWindow(op)));
}

// ---- Operations that are one launch ----

#define ATOLL_RUN(Op)                           \
  void Ops::Run(Stream& stream, const Op& op) { \
    op.Check();                                 \
    Enqueue(GetQueue(stream), op);              \
  }
#define ATOLL_RUN_WITH_SCRATCH(Op)                                   \
  void Ops::Run(Stream& stream, const Op& op, Workspace workspace) { \
    op.Check();                                                      \
    Enqueue(GetQueue(stream), op, workspace);                        \
  }                                                                  \
  int64_t Ops::WorkspaceBytes(const Op& op) const { return ScratchBytes(op); }

#define ATOLL_BY_LIBRARY(Op)  // above, and convolution.cc
ATOLL_OPERATIONS(ATOLL_RUN, ATOLL_RUN_WITH_SCRATCH, ATOLL_BY_LIBRARY, ATOLL_RUN)

#undef ATOLL_BY_LIBRARY
#undef ATOLL_RUN
#undef ATOLL_RUN_WITH_SCRATCH

}  // namespace atl::ATOLL_DEVICE
