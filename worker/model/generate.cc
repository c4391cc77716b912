#include "worker/model/generate.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "common/rng.h"

namespace atl {

int32_t SampleToken(std::span<const float> logits, const SamplingOptions& options, double random) {
  ATOLL_CHECK(!logits.empty());
  std::vector<int32_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  const auto likelier = [&](int32_t a, int32_t b) {
    return logits[a] != logits[b] ? logits[a] > logits[b] : a < b;
  };
  if (options.temperature <= 0) return *std::min_element(order.begin(), order.end(), likelier);
  const auto k = options.top_k > 0 ? std::min<size_t>(options.top_k, order.size()) : order.size();
  std::partial_sort(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(k), order.end(),
                    likelier);
  std::vector<double> cumulative(k);
  double sum = 0;
  for (size_t i = 0; i < k; ++i) {
    sum +=
        std::exp((static_cast<double>(logits[order[i]]) - logits[order[0]]) / options.temperature);
    cumulative[i] = sum;
  }
  const auto found = std::upper_bound(cumulative.begin(), cumulative.end(), random * sum);
  return order[std::min<size_t>(found - cumulative.begin(), k - 1)];
}

absl::StatusOr<std::vector<int32_t>> Generate(ModelRunner& runner, std::span<const int32_t> prompt,
                                              const SamplingOptions& options,
                                              const std::function<void(int32_t)>& on_token) {
  const int64_t vocab = runner.model().config().vocab;
  if (prompt.empty()) return absl::InvalidArgumentError("the prompt is empty");
  for (const int32_t token : prompt) {
    if (token < 0 || token >= vocab) {
      return absl::InvalidArgumentError(
          absl::StrCat("the prompt's token ", token, " is outside the vocabulary of ", vocab));
    }
  }
  if (options.count < 0 || options.top_k < 0 || !(options.temperature >= 0)) {
    return absl::InvalidArgumentError("count, top_k and temperature must not be negative");
  }
  std::vector<int32_t> tokens(prompt.begin(), prompt.end());
  std::vector<float> logits(static_cast<size_t>(vocab));
  Rng rng(options.seed);
  for (int64_t i = 0; i < options.count; ++i) {
    const size_t context = std::min(tokens.size(), static_cast<size_t>(runner.seq_len()));
    ATOLL_RETURN_IF_ERROR(runner.Logits(std::span(tokens).last(context), logits));
    if (!std::all_of(logits.begin(), logits.end(), [](float x) { return std::isfinite(x); })) {
      return absl::FailedPreconditionError("the model's logits are not finite; it has diverged");
    }
    tokens.push_back(SampleToken(logits, options, rng.Uniform()));
    if (on_token) on_token(tokens.back());
  }
  tokens.erase(tokens.begin(), tokens.begin() + static_cast<std::ptrdiff_t>(prompt.size()));
  return tokens;
}

}  // namespace atl
