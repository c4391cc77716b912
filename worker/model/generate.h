// Text from a model, token by token.

#ifndef ATOLL_WORKER_MODEL_GENERATE_H_
#define ATOLL_WORKER_MODEL_GENERATE_H_

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "worker/model/runner.h"

namespace atl {

struct SamplingOptions {
  int64_t count = 100;       // tokens to make
  double temperature = 1.0;  // 0: always the likeliest token
  int64_t top_k = 0;         // choose among the k likeliest; 0: among all
  uint64_t seed = 1;
};

// The index of the next token. `random` is uniform in [0, 1). Equal logits: the lower index first.
int32_t SampleToken(std::span<const float> logits, const SamplingOptions& options, double random);

// The `count` tokens that follow `prompt`. Each is made from the last seq_len tokens (of the
// runner's options); the attention operation has no cache of keys, so every token costs one forward
// pass. `on_token`, if any, sees each token as it is made. INVALID_ARGUMENT: an empty prompt, a
// token outside the vocabulary, or options out of range.
absl::StatusOr<std::vector<int32_t>> Generate(
    ModelRunner& runner, std::span<const int32_t> prompt, const SamplingOptions& options,
    const std::function<void(int32_t token)>& on_token = nullptr);

}  // namespace atl

#endif  // ATOLL_WORKER_MODEL_GENERATE_H_
