// Models as the papers' systems count them, by formula: of tests and benches. Islands and `atoll
// plan` count what the runtime does (planning/request.h).
//
// Per layer the parameters, forward FLOPs, bytes stashed for the backward pass and bytes sent to
// the next layer, all but the parameters per sample (a sequence, or an image).
//   transformer layer (h, ffn, s, kv heads): attention 2h^2 + 2h*kv parameters, MLP 2h*ffn (GPT,
//   BERT) or 3h*ffn (LLaMA), biases and norms; forward FLOPs per token 2 * matrix parameters +
//   4*s*h (half of the scores with a causal mask is not assumed); stash 34*h bytes per token (flash
//   attention, half precision; Korthikanti et al. 2022 without the 5*a*s^2 term); sent 2*h bytes
//   per token. convolution k x k, cin -> cout at H x W: k^2*cin*cout/groups parameters, 2*H*W times
//   that FLOPs, stash 2 bytes for input and normalised output.

#ifndef ATOLL_COORDINATOR_PLANNER_TESTING_MODELS_H_
#define ATOLL_COORDINATOR_PLANNER_TESTING_MODELS_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "coordinator/planner/cluster/catalogue.h"

namespace atl::plan {

Model MakeTransformer(const TransformerShape& shape);

// Finds a model among TransformerShapes(), and resnet50, resnet101, efficientnet-b0. `sequence`
// overrides the length, or the width and height of images (0: the model's own; images: 224).
absl::StatusOr<Model> FindModel(absl::string_view name, int64_t sequence = 0);

}  // namespace atl::plan

#endif  // ATOLL_COORDINATOR_PLANNER_TESTING_MODELS_H_
