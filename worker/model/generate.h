// Tokens from a model, one after the other.

#ifndef ATOLL_WORKER_MODEL_GENERATE_H_
#define ATOLL_WORKER_MODEL_GENERATE_H_

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "kernels/cpu/cpu.h"
#include "worker/model/runner.h"

namespace atl {

struct SamplingOptions {
  int64_t count = 100;        // tokens to make
  double temperature = 1.0;   // 0: always the likeliest token
  int64_t top_k = 0;          // choose among the k likeliest; 0: among all
  double top_p = 1.0;         // among the fewest likeliest whose probabilities reach it
  std::vector<int32_t> stop;  // tokens that end it; they are not part of the result
  uint64_t seed = 1;
};

// The index of the next token. `random` is uniform in [0, 1). Equal logits: the lower index first.
int32_t SampleToken(std::span<const float> logits, const SamplingOptions& options, double random);

// The tokens that follow `prompt`, `count` or fewer. Each is made from the last seq_len tokens (of
// the runner's options) at most. With `cache`, which is that of the runner's backend, a pass takes
// the newest token alone, and where the context is full the older half of it is forgotten; without
// one, every token costs a pass over its whole context. `on_token`, if any, sees each token as it
// is made; false ends it. INVALID_ARGUMENT: an empty prompt, a token outside the vocabulary, or
// options out of range.
absl::StatusOr<std::vector<int32_t>> Generate(
    ModelRunner& runner, SequenceCache* cache, std::span<const int32_t> prompt,
    const SamplingOptions& options, const std::function<bool(int32_t token)>& on_token = nullptr);

}  // namespace atl

#endif  // ATOLL_WORKER_MODEL_GENERATE_H_
