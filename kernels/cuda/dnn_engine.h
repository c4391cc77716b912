// Attention by cuDNN's fused kernels ("flash attention"), in bf16.

#ifndef ATOLL_KERNELS_CUDA_DNN_ENGINE_H_
#define ATOLL_KERNELS_CUDA_DNN_ENGINE_H_

#include <memory>

#include "kernels/cuda/dnn_graph.h"
#include "kernels/cuda/ops.h"

namespace atl::cuda {

// Creates the engine for the current device. Null where cuDNN has nothing for us, before compute
// capability 8.0, or does not start: our own kernels then do all attention. Takes bf16 with heads
// of at most 128 channels, a multiple of 8, and rows that begin on 16 bytes, as far as the version
// of cuDNN that is loaded gets them right (dnn_rules.h) and wants no more than 1 GiB of scratch.
// The backward pass is requested without atomics, so that it gives the same bits again. `declined`
// outlives it.
std::unique_ptr<AttentionEngine> NewDnnEngine(int compute_capability_major, Declined* declined);

// Strides of an attention's operands, in elements between tokens.
struct AttentionStrides {
  int64_t q = 0, k = 0, v = 0, out = 0, dout = 0, dq = 0, dk = 0, dv = 0;
  bool operator==(const AttentionStrides&) const = default;
};

// The graph of one pass, and which of its tensors is which (-1: not in it).
struct AttentionGraph {
  DnnGraph graph;
  int q = -1, k = -1, v = -1, out = -1, lse = -1, dout = -1, dq = -1, dk = -1, dv = -1;
  int delta = -1;  // scratch: f32 [batch, heads, T]
  int scale = -1, minus_infinity = -1, one = -1;
};
AttentionGraph ForwardGraph(const AttentionShape& shape, const AttentionStrides& strides);
AttentionGraph BackwardGraph(const AttentionShape& shape, const AttentionStrides& strides);

}  // namespace atl::cuda

#endif  // ATOLL_KERNELS_CUDA_DNN_ENGINE_H_
