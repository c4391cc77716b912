// Costs of each layer of a model in operations and memory, by its shapes alone: for planners.

#ifndef ATOLL_COMMON_MODEL_COSTS_H_
#define ATOLL_COMMON_MODEL_COSTS_H_

#include <vector>

#include "common/model/config.h"
#include "common/model/stash.h"

namespace atl {

struct LayerCosts {
  std::string name;             // as LayerLayout's
  int64_t parameters = 0;       // that are trained; a tied head's table is the embedding's
  int64_t read_parameters = 0;  // likewise, of products in forward: with a tied head's table
  int64_t frozen_bytes = 0;     // of what an adapter leaves as it is: with a tied head's table
  int64_t coded_bytes = 0;      // of these, of codes, which are the same in any compute type
  // Numbers of one sequence.
  double forward_flops = 0;
  double frozen_flops = 0;   // of these, products with frozen weights, which have no W
  int64_t output_bytes = 0;  // to the next layer; of the head: its logits
  int64_t forward_stash_bytes = 0, backward_stash_bytes = 0;
};

// Counts the weights of a block's feed-forward that one token is multiplied with: of a mixture, the
// router's, the shared expert's and those of the experts that a token goes through.
int64_t FeedForwardWeights(const ModelConfig& config, int64_t block);
// Counts the parameters of layer `layer` that a token does not go through: experts that it did not
// choose.
int64_t IdleParameters(const ModelConfig& config, int64_t layer);

// Floating-point operations of the forward pass of one sequence through layer `layer` of
// config.layers + 2. Backward takes twice as many, half of them for the weights but for attention's
// scores. `adapter_parameters`: of the layer. REQUIRES: valid.
double ForwardFlops(const ModelConfig& config, int64_t layer, int64_t seq_len,
                    int64_t adapter_parameters = 0);

// Returns the costs of all layers in order, each whole. REQUIRES: valid.
std::vector<LayerCosts> CostsByLayer(const ModelConfig& config, int64_t seq_len,
                                     const ElementBytes& element);

// Returns the bytes of a stage's constants: rotary positions' table.
int64_t ConstantBytes(const ModelConfig& config, int64_t seq_len, const ElementBytes& element);

}  // namespace atl

#endif  // ATOLL_COMMON_MODEL_COSTS_H_
