// Published transformers by their names, as `atoll plan --model` takes them.

#ifndef ATOLL_COORDINATOR_PLANNER_CLUSTER_MODEL_SHAPES_H_
#define ATOLL_COORDINATOR_PLANNER_CLUSTER_MODEL_SHAPES_H_

#include <cstdint>
#include <string>
#include <vector>

namespace atl::plan {

// `layers` blocks between an embedding and a head.
struct TransformerShape {
  std::string name;
  int64_t layers = 0;
  int64_t hidden = 0;
  int64_t heads = 0;
  int64_t kv_heads = 0;  // 0: as heads
  int64_t ffn = 0;       // 0: 4 * hidden
  int64_t vocabulary = 0;
  int64_t sequence = 0;
  bool gated = false;     // LLaMA's MLP of three matrices, no biases, RMS norms
  bool tied_head = true;  // the head shares the embedding's parameters
  bool positions = true;  // learnt positions
};

// gpt2, gpt2-medium, gpt2-large, gpt2-xl, gpt3-1.3b, gpt3-2.7b, gpt3-6.7b, gpt3-13b, gpt3-22b,
// gpt3-175b, llama-1b, llama-7b, llama-8b, llama-13b, llama-70b, bert-small, bert-base, bert-large.
const std::vector<TransformerShape>& TransformerShapes();

}  // namespace atl::plan

#endif  // ATOLL_COORDINATOR_PLANNER_CLUSTER_MODEL_SHAPES_H_
