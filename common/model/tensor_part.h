// How tensor parallelism cuts a model: which part of every layer each rank of a group holds.
//
// Megatron's cut (Shoeybi et al. 2019, sections 3 and 4): matrices that begin a half of a block are
// cut by their output (query heads with the key and value heads they read; hidden columns of the
// feed-forward), those that end it by their input, so that each half costs one sum of activations
// over the ranks in F and one in B, and none in W. Of a mixture of experts each rank has some whole
// ones, which it computes for the tokens that chose them, and that sum joins them. The embedding's
// table and the head are cut by vocabulary, and so is the loss: logits are never gathered. Norms,
// learned positions, and biases that are added after a sum are held whole by every rank; their
// gradients are the same on all.

#ifndef ATOLL_COMMON_MODEL_TENSOR_PART_H_
#define ATOLL_COMMON_MODEL_TENSOR_PART_H_

#include <cstdint>
#include <span>
#include <vector>

#include "common/element_ranges.h"
#include "common/model/config.h"
#include "common/status.h"

namespace atl {

// [begin, end)
using Range = ElementRange;

// The part of a layer that rank `rank` of a group of `ranks` holds.
struct TensorPart {
  int rank = 0;
  int ranks = 1;
  Range heads;     // query heads
  Range kv_heads;  // key and value heads: those that `heads` read
  Range ffn;       // columns of the feed-forward's hidden layer
  Range experts;   // whole ones; the router and its scores are held by every rank
  Range shared;    // columns of the shared expert's hidden layer
  Range vocab;     // rows of the embedding's table and of the head

  bool whole() const { return ranks == 1; }
  bool leads() const { return rank == 0; }  // adds what must be added once: residuals, biases
  bool operator==(const TensorPart&) const = default;
};

// Counts the groups of key-value heads, and of hidden columns where there are any, of which each
// rank gets one or more.
int64_t CountHeadGroups(const ModelConfig& config);
int64_t CountHiddenGroups(const ModelConfig& config);

// Rank 0 of 1. REQUIRES: config is valid.
TensorPart WholePart(const ModelConfig& config);

// The parts of a group by rank, in proportion to `ratios` (empty: even), by largest remainder,
// every rank at least one key-value head, one hidden column, one expert and one word; where the
// base is stored as codes, as many heads and hidden columns as end with a block of codes. The same
// arguments give the same cut everywhere. INVALID_ARGUMENT says what cannot be cut so, and what
// can. REQUIRES: config is valid.
absl::StatusOr<std::vector<TensorPart>> CutModel(const ModelConfig& config, int ranks,
                                                 std::span<const int32_t> ratios);

}  // namespace atl

#endif  // ATOLL_COMMON_MODEL_TENSOR_PART_H_
