// The tensors that a layer keeps between its forward and backward passes: which tensors, how large,
// where. The layers take their memory by this, and planners count it.

#ifndef ATOLL_COMMON_MODEL_STASH_H_
#define ATOLL_COMMON_MODEL_STASH_H_

#include <array>

#include "common/model/config.h"
#include "common/model/tensor_part.h"

namespace atl {

// `rows` sequences of `seq_len` tokens.
struct BatchShape {
  int64_t rows = 0;
  int64_t seq_len = 0;
  int64_t tokens() const { return rows * seq_len; }
};

// Bytes of an activation's element, and of a statistic's and a parameter's.
struct ElementBytes {
  int64_t compute = 4;
  int64_t state = 4;
};

// A matrix in a stash. Without rows: the family has no such tensor.
struct Slot {
  int64_t offset = 0;  // bytes
  int64_t rows = 0;
  int64_t cols = 0;
  bool state = false;  // of the state's type, else of the activations'
  bool present() const { return rows > 0; }
};

// Hands out slots one after the other, each aligned to 64 bytes.
class SlotCarver {
 public:
  explicit SlotCarver(const ElementBytes& element) : element_(element) {}
  Slot Activation(int64_t rows, int64_t cols) { return Take(rows, cols, false); }
  Slot State(int64_t rows, int64_t cols) { return Take(rows, cols, true); }
  int64_t bytes() const { return bytes_; }

 private:
  Slot Take(int64_t rows, int64_t cols, bool state);

  const ElementBytes element_;
  int64_t bytes_ = 0;
};

// Slots of one norm: its rows' statistics.
struct NormSlots {
  Slot mean, rstd;
};

// One for each product of a block; absent where none of its matrices has an adapter.
using AdapterSlots = std::array<Slot, kBlockProducts>;

// Slots of a mixture of experts; absent in other blocks. A choice is a token with one of the
// experts that it goes through. Whole numbers of 32 bits stand in slots of the state's type.
struct ExpertSlots {
  Slot logits;        // [tokens, count]; the shared expert's weight has a column behind them
  Slot chosen;        // [tokens, per_token] whole numbers: experts, the highest score first
  Slot weights;       // [tokens, per_token]; likewise
  Slot group_starts;  // [1, experts here + 1] whole numbers: where each one's rows begin
  Slot assignments;   // [1, ExpertRows] whole numbers: choices here, sorted by expert
  Slot rows;          // [tokens, per_token] whole numbers: where each choice went
  Slot shared_up, shared_hidden;
};

// Returns the most choices of so many tokens that are of experts of the part.
int64_t ExpertRows(const ModelConfig& config, const TensorPart& part, int64_t tokens);
// INVALID_ARGUMENT: a micro-batch of this shape has more choices of experts than kernels count.
absl::Status CheckChoices(const ModelConfig& config, const BatchShape& shape);

struct BlockForwardStash {
  NormSlots norm, after_norm, feed_forward_norm, after_feed_forward_norm;
  NormSlots qk_norm;   // a row for each norm: query heads, then key heads
  Slot normed;         // attention's input; the block's own without a norm before
  Slot qkv;            // what attention reads
  Slot raw_qk;         // queries and keys before their norms
  Slot out, lse;       // of attention
  Slot attention_sum;  // what the norm after attention reads
  Slot middle;         // the residual stream after attention
  Slot feed_forward_normed;
  // Gate and up, or what goes into the nonlinearity; of experts a row for each choice.
  Slot up;
  Slot hidden;
  ExpertSlots experts;
  Slot feed_forward_sum;
  AdapterSlots low;  // scale * A x
  int64_t bytes = 0;
};

// The gradient of gate and up takes their place in the forward stash, also of experts; that of a
// plain feed-forward's has its own.
struct BlockBackwardStash {
  Slot normed, qkv, raw_qk, attention_sum, middle, feed_forward_normed, up, feed_forward_sum;
  // The gradient of the weights of the norms of queries and keys, side by side. Each rank of a
  // tensor-parallel group has its heads' part, so B sums them up.
  Slot query_norm_weight, key_norm_weight;
  Slot expert_logits;
  AdapterSlots low;  // the gradient of A x
  int64_t bytes = 0;
};

BlockForwardStash MakeBlockForwardStash(const ModelConfig& config, int64_t block,
                                        const TensorPart& part, const BatchShape& shape,
                                        const ElementBytes& element);
BlockBackwardStash MakeBlockBackwardStash(const ModelConfig& config, int64_t block,
                                          const TensorPart& part, const BatchShape& shape,
                                          const ElementBytes& element);

// The stash of the embedding; the head's is below.
struct EmbeddingStash {
  NormSlots norm;
  Slot sum;       // what the norm reads
  Slot grad_sum;  // backward
  int64_t forward_bytes = 0, backward_bytes = 0;
};
EmbeddingStash MakeEmbeddingStash(const ModelConfig& config, const BatchShape& shape,
                                  const ElementBytes& element);

struct HeadStash {
  NormSlots norm;
  Slot normed;
  Slot transform;    // into the nonlinearity
  Slot transformed;  // behind it
  Slot grad_normed;  // backward, as are the next ones
  Slot grad_transform;
  int64_t forward_bytes = 0, backward_bytes = 0;
};
HeadStash MakeHeadStash(const ModelConfig& config, const BatchShape& shape,
                        const ElementBytes& element);

// Returns the rows of a micro-batch of which the loss head has logits at a time: they take at most
// the memory of eight of the micro-batch's activations, or 16 rows. Fewer would make more passes
// over the gradient of the head's matrix. Of images all: their norms are over all rows.
int64_t LossRows(const ModelConfig& config, const BatchShape& shape);

}  // namespace atl

#endif  // ATOLL_COMMON_MODEL_STASH_H_
