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
  std::vector<double> weights(k);  // of the k likeliest, the first one's being 1
  double sum = 0;
  for (size_t i = 0; i < k; ++i) {
    weights[i] =
        std::exp((static_cast<double>(logits[order[i]]) - logits[order[0]]) / options.temperature);
    sum += weights[i];
  }
  size_t kept = k;
  if (options.top_p < 1) {
    double cumulative = 0;
    for (kept = 0; kept < k && cumulative < options.top_p * sum; ++kept)
      cumulative += weights[kept];
    kept = std::max<size_t>(kept, 1);
    sum = cumulative;
  }
  double left = random * sum;
  for (size_t i = 0; i + 1 < kept; ++i) {
    left -= weights[i];
    if (left < 0) return order[i];
  }
  return order[kept - 1];
}

namespace {

absl::Status Check(std::span<const int32_t> prompt, const SamplingOptions& options,
                   int64_t vocabulary) {
  if (prompt.empty()) return absl::InvalidArgumentError("the prompt is empty");
  for (const int32_t token : prompt) {
    if (token < 0 || token >= vocabulary) {
      return absl::InvalidArgumentError(
          absl::StrCat("the prompt's token ", token, " is outside the vocabulary of ", vocabulary));
    }
  }
  if (options.count < 0 || options.top_k < 0 || !(options.temperature >= 0) ||
      !(options.top_p > 0 && options.top_p <= 1)) {
    return absl::InvalidArgumentError(
        "count, top_k and temperature must not be negative, top_p above 0 and at most 1");
  }
  return absl::OkStatus();
}

// The context that the next token is made from, and how much of it the cache holds.
class Context {
 public:
  Context(ModelRunner& runner, SequenceCache* cache, std::span<const int32_t> prompt)
      : runner_(runner), cache_(cache), tokens_(prompt.begin(), prompt.end()) {}

  void Add(int32_t token) { tokens_.push_back(token); }

  absl::Status NextLogits(std::span<float> logits) {
    const auto most = static_cast<size_t>(runner_.seq_len());
    if (tokens_.size() - begin_ > most) {
      begin_ = tokens_.size() - (cache_ == nullptr || passed_ == 0 ? most : (most + 1) / 2);
      passed_ = 0;
    }
    const std::span<const int32_t> context = std::span<const int32_t>(tokens_).subspan(begin_);
    if (cache_ == nullptr) return runner_.Logits(context, logits);
    cache_->StartPass(static_cast<int64_t>(passed_));
    ATOLL_RETURN_IF_ERROR(runner_.Logits(context.subspan(passed_), logits));
    passed_ = context.size();
    return absl::OkStatus();
  }

 private:
  ModelRunner& runner_;
  SequenceCache* cache_;
  std::vector<int32_t> tokens_;
  size_t begin_ = 0;   // of the context in tokens_
  size_t passed_ = 0;  // tokens of the context that the cache holds
};

}  // namespace

absl::StatusOr<std::vector<int32_t>> Generate(ModelRunner& runner, SequenceCache* cache,
                                              std::span<const int32_t> prompt,
                                              const SamplingOptions& options,
                                              const std::function<bool(int32_t)>& on_token) {
  const int64_t vocab = runner.model().config().vocab;
  ATOLL_RETURN_IF_ERROR(Check(prompt, options, vocab));
  Context context(runner, cache, prompt);
  std::vector<int32_t> made;
  std::vector<float> logits(static_cast<size_t>(vocab));
  Rng rng(options.seed);
  while (static_cast<int64_t>(made.size()) < options.count) {
    ATOLL_RETURN_IF_ERROR(context.NextLogits(logits));
    if (!std::all_of(logits.begin(), logits.end(), [](float x) { return std::isfinite(x); })) {
      return absl::FailedPreconditionError("the model's logits are not finite; it has diverged");
    }
    const int32_t token = SampleToken(logits, options, rng.Uniform());
    if (std::find(options.stop.begin(), options.stop.end(), token) != options.stop.end()) break;
    made.push_back(token);
    context.Add(token);
    if (on_token && !on_token(token)) break;
  }
  return made;
}

}  // namespace atl
