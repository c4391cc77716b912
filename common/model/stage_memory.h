// Predicts the memory of a stage on its device by the model's shapes alone: planners use it, and
// tests/island/memory_test.cc holds it to what worker/model and worker/pipeline take. The workspace
// of operations is a backend's matter and has to be measured.

#ifndef ATOLL_COMMON_MODEL_STAGE_MEMORY_H_
#define ATOLL_COMMON_MODEL_STAGE_MEMORY_H_

#include <set>
#include <vector>

#include "common/model/layout.h"
#include "common/model/stash.h"
#include "common/model/tensor_part.h"
#include "common/protocol/job_spec.h"
#include "common/protocol/program_slots.h"

namespace atl {

// Memory of one layer on one tensor-parallel rank; activations are those of one micro-batch.
struct LayerFootprint {
  int64_t elements = 0;  // parameters on this rank; a tied head's table is the embedding's
  // Parameters, their gradient, and their copy in the activations' type, if that is another one;
  // and frozen tensors, in that type alone.
  int64_t parameter_bytes = 0;
  int64_t input_bytes = 0;  // what the layer before hands on; of the first one, token ids or pixels
  int64_t output_bytes = 0;  // of the head none: logits are in `slice_bytes`
  int64_t forward_stash_bytes = 0, backward_stash_bytes = 0;
  // The head takes this of one slice (LossRows), once in a stage: logits, whose gradient
  // takes their place, stashes, and the gradient of its input. That of all rows takes the input's
  // place.
  int64_t slice_bytes = 0;
};

// Returns the footprints of all layers in order. REQUIRES: valid.
std::vector<LayerFootprint> ComputeLayerFootprints(const ModelConfig& config,
                                                   const TensorPart& part, const BatchShape& shape,
                                                   const ElementBytes& element);

// Layers that one device has as one stage.
struct StageSpan {
  int first_layer = 0;
  int layers = 0;
  std::set<int> recomputed;  // of these layers; the two ends keep what they have
};

// Activations, their gradients and stashes of as many micro-batches as the slots say.
int64_t ActivationBytes(const std::vector<LayerFootprint>& model, const StageSpan& stage,
                        const StageSlots& slots);

// The copy of the embedding's table that a tied head on another device has: parameters and their
// gradient. What the optimizer keeps of it is the embedding's.
int64_t TiedTableElements(const ModelConfig& config, const TensorPart& part);

}  // namespace atl

#endif  // ATOLL_COMMON_MODEL_STAGE_MEMORY_H_
