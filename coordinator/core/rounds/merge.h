// Merges a round's accepted pseudo-gradients: the merge that the job chose, the clip scale, the
// rate of the outer step, and what these say about how well the islands learn. All of it follows
// from the Gram matrices of the layers, in which the outer optimizer's reference slot (its
// momentum) is included with the pseudo-gradients: one round trip is enough. Pure.
//
// A layer is the "tensor" of the published rules: servers keep Gram matrices by layer.

#ifndef ATOLL_COORDINATOR_CORE_ROUNDS_MERGE_H_
#define ATOLL_COORDINATOR_CORE_ROUNDS_MERGE_H_

#include <cstdint>
#include <set>
#include <vector>

#include "common/protocol/control.h"
#include "common/protocol/job_spec.h"

namespace atl {

struct MergeCandidate {
  double weight = 0;   // token share, sum 1 but for clipped ones; 0: rejected
  double quality = 1;  // tokens an inner step; `radial` weighs by it
  int64_t age = 0;     // versions that were made since its base
};

// A figure that is not known is 0.
struct RoundHealth {
  double rho = 0;     // of nesterov: cosine of successive merged pseudo-gradients, estimated from
                      // the momentum's part in the new one; others: its cosine to their momentum
  double gain = 0;    // the step along the merged pseudo-gradient, over its length
  double cosine = 0;  // mean over pairs of accepted contributions
  double staleness = 0;  // mean age, by weight
};

struct MergeInput {
  const OuterSpec& outer;
  std::vector<MergeCandidate> candidates;  // k
  // The Gram matrix of each layer, (k + 1)-by-(k + 1) row by row: the candidates', then the
  // reference slot's products (0 where there is none).
  const std::vector<LayerGram>& layers;
  std::set<int32_t> plain_layers;  // merged by the mean whatever the merge is: embeddings
  std::vector<double> past_rho;    // of the newest rounds
};

struct MergedRound {
  std::vector<double> weights;  // of whole pseudo-gradients, everything included
  RoundStep step;               // as servers get it
  double norm = 0;              // of the merged pseudo-gradient, before clip_scale
  double clip_scale = 1;        // min(1, clip_norm / norm)
  RoundHealth health;
};

// REQUIRES: at least one weight above 0.
MergedRound MergeRound(const MergeInput& input);

// The gain of Nesterov's method at rate 1.
double NesterovGain(double momentum, double rho);

}  // namespace atl

#endif  // ATOLL_COORDINATOR_CORE_ROUNDS_MERGE_H_
