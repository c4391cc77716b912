// The inner learning rate and batch as functions of the job's progress, the same on every island.

#ifndef ATOLL_COMMON_PROTOCOL_LEARNING_RATE_H_
#define ATOLL_COMMON_PROTOCOL_LEARNING_RATE_H_

#include <cstdint>

#include "common/protocol/job_spec.h"

namespace atl {

// Linear warm-up over the first inner.warmup_fraction of `train_tokens`, then as inner.schedule
// says, down to learning_rate * final_learning_rate_ratio at `train_tokens` and after: along a
// cosine or a line; along inner.decay_shape over the last inner.decay_fraction alone (wsd); or
// never (constant). `tokens` counts the step that the rate is for, so the first step's is not zero.
// `islands` that train count where learning_rate_scaling says so. Sources of wsd and its shapes:
// MiniCPM (2404.06395), Haegele et al. (2405.18392).
double LearningRate(const InnerSpec& inner, int64_t train_tokens, int64_t tokens, int64_t islands);

// Returns the sequences of an island's step from a version of so many committed tokens: those of
// the newest stage of inner.batch_ramp, else inner.batch_sequences. All steps from one version have
// equally many, so that a step that is replayed has those that it had.
int64_t BatchSequences(const InnerSpec& inner, int64_t tokens);

}  // namespace atl

#endif  // ATOLL_COMMON_PROTOCOL_LEARNING_RATE_H_
