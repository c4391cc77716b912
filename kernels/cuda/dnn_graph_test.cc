// The attention graphs, as far as cuDNN looks at them without a device: every tensor and operation
// is taken. Whether an engine runs them is for the operations' tests on a GPU.

#include <catch2/catch.hpp>

#include "kernels/cuda/dnn_engine.h"

namespace atl::cuda {
namespace {

TEST_CASE("cuDNN takes every descriptor of the attention graphs") {
  for (const int64_t kv_heads : {12, 4, 1}) {
    for (const int64_t head_dim : {64, 128}) {
      const AttentionShape shape{.batch = 8,
                                 .seq_len = 1024,
                                 .heads = 12,
                                 .kv_heads = kv_heads,
                                 .head_dim = head_dim,
                                 .scale = 0.125f};
      const int64_t q = 12 * head_dim, qkv = (12 + 2 * kv_heads) * head_dim;
      const AttentionStrides strides{qkv, qkv, qkv, q, q, qkv, qkv, qkv};
      CAPTURE(kv_heads, head_dim);
      const AttentionGraph forward = ForwardGraph(shape, strides);
      INFO(forward.graph.status());
      REQUIRE(forward.graph.status().ok());
      const AttentionGraph backward = BackwardGraph(shape, strides);
      INFO(backward.graph.status());
      REQUIRE(backward.graph.status().ok());
    }
  }
}

TEST_CASE("what does not fit together is seen when the graph is made") {
  DnnGraph graph;
  const int a = graph.Real({1, 1, 8, 16}, {128, 128, 16, 1}, CUDNN_DATA_BFLOAT16);
  const int b = graph.Real({1, 1, 32, 8}, {256, 256, 8, 1}, CUDNN_DATA_BFLOAT16);
  const int c = graph.Real({1, 1, 8, 8}, {64, 64, 8, 1}, CUDNN_DATA_BFLOAT16);
  graph.Multiply(a, b, c);
  REQUIRE_FALSE(graph.status().ok());
}

}  // namespace
}  // namespace atl::cuda
