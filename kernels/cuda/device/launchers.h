// Puts our own kernels on a queue, one function per operation. Each .cu file says in its first
// lines what its kernels move and compute. Arguments are those of kernels/ops.h, already checked.

#ifndef ATOLL_KERNELS_CUDA_DEVICE_LAUNCHERS_H_
#define ATOLL_KERNELS_CUDA_DEVICE_LAUNCHERS_H_

#include "kernels/cuda/product.h"
#include "kernels/cuda/queue.h"
#include "kernels/ops.h"

namespace atl::ATOLL_DEVICE {

// ---- All operations that are one launch or a few ----

#define ATOLL_LAUNCHER(Op) void Enqueue(const Queue& queue, const Op& op);
#define ATOLL_LAUNCHER_WITH_SCRATCH(Op)                                \
  void Enqueue(const Queue& queue, const Op& op, Workspace workspace); \
  int64_t ScratchBytes(const Op& op);
#define ATOLL_BY_LIBRARY(Op)
ATOLL_OPERATIONS(ATOLL_LAUNCHER, ATOLL_LAUNCHER_WITH_SCRATCH, ATOLL_BY_LIBRARY, ATOLL_LAUNCHER)
#undef ATOLL_LAUNCHER
#undef ATOLL_LAUNCHER_WITH_SCRATCH
#undef ATOLL_BY_LIBRARY

// ---- elementwise.cu: and behind a product ----

// The work that a product that fuses nothing leaves: y = activation(raw + bias) + add, and the
// argument of the activation in `pre`. bias, add and pre are optional; raw may be pre or y.
struct FinishForward {
  Tensor raw, bias, add, y;
  Activation activation = Activation::kNone;
  Tensor pre;
};
void Enqueue(const Queue& queue, const FinishForward& op);

// dx = raw * activation'(pre) + add, `add` optional; raw may be dx.
struct FinishBackward {
  Tensor raw, add, dx;
  Activation activation = Activation::kNone;
  Tensor pre;
};
void Enqueue(const Queue& queue, const FinishBackward& op);

// ---- columns.cu ----

// sum[c] += sum over rows of x[n][c].
struct SumRows {
  Tensor x;    // act [N, C]
  Tensor sum;  // f32 [1, C]
};
void Enqueue(const Queue& queue, const SumRows& op, Workspace workspace);
int64_t ScratchBytes(const SumRows& op);

// ---- attention_mma.cu: what cuDNN does not take, on tensor cores. False, with nothing enqueued,
// where these do not take it either: heads of more than 128 channels, fp32, odd addresses. ----

bool EnqueueOnTensorCores(const Queue& queue, const AttentionForward& op);
// `delta`: [batch * heads, T], each query's dot product of dout and out.
bool EnqueueOnTensorCores(const Queue& queue, const AttentionBackward& op, const float* delta);

// ---- experts_mma.cu: likewise, of matrices in bf16 whose rows begin on 16 bytes and are multiples
// of 8 elements; experts.cu does the rest. ----

bool EnqueueOnTensorCores(const Queue& queue, const GroupedForward& op);
bool EnqueueOnTensorCores(const Queue& queue, const GroupedBackwardInput& op);
bool EnqueueOnTensorCores(const Queue& queue, const GroupedBackwardWeight& op);

// ---- attention.cu: the rest, and the choice ----

void Enqueue(const Queue& queue, const AttentionForward& op);
void Enqueue(const Queue& queue, const AttentionBackward& op, Workspace workspace);
int64_t ScratchBytes(const AttentionBackward& op);

// ---- convolution.cu: what is done beside products for one group of channels, and what is done
// whole for several. Columns of products go by tap, then channel, so that packs of channels move
// together; `columns` and `turned` may have more, which are zero. ----

// columns[row] = what the taps of output row `row` see of x.
struct ConvColumns {
  ConvShape shape;
  Tensor x;        // act [in_rows, in_channels]
  Tensor columns;  // act [out_rows, >= taps * in_channels]
};
void Enqueue(const Queue& queue, const ConvColumns& op);

// dx = for each element, the sum of the columns that it is in.
struct FoldColumns {
  ConvShape shape;
  Tensor columns;
  Tensor dx;
};
void Enqueue(const Queue& queue, const FoldColumns& op);

struct TurnWeights {
  ConvShape shape;
  Tensor w;       // as in ConvForward
  Tensor turned;  // act [out_channels, as columns]
};
void Enqueue(const Queue& queue, const TurnWeights& op);

// dw += turned, back in w's order.
struct AddTurnedWeights {
  ConvShape shape;
  Tensor turned;  // f32
  Tensor dw;
};
void Enqueue(const Queue& queue, const AddTurnedWeights& op);

void Enqueue(const Queue& queue, const ConvForward& op);
void Enqueue(const Queue& queue, const ConvBackwardInput& op);
void Enqueue(const Queue& queue, const ConvBackwardWeight& op, Workspace workspace);
int64_t ScratchBytes(const ConvBackwardWeight& op);

// ---- product.cu: what cuBLASLt does not take ----

// REQUIRES: no epilogue.
void Enqueue(const Queue& queue, const Product& product);

}  // namespace atl::ATOLL_DEVICE

#endif  // ATOLL_KERNELS_CUDA_DEVICE_LAUNCHERS_H_
