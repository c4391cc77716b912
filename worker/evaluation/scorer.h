// How likely a language model finds a text after another one.

#ifndef ATOLL_WORKER_EVALUATION_SCORER_H_
#define ATOLL_WORKER_EVALUATION_SCORER_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/status.h"
#include "common/tokenizer/tokenizer.h"
#include "worker/model/runner.h"

namespace atl {

// A text and, behind it, one that is scored.
struct ScoredTokens {
  std::vector<int32_t> tokens;
  int64_t context =
      0;  // tokens that are not scored, from the first; 0: the first token has none before it
};

// Tokens of texts, as lm-evaluation-harness makes them (its HFLM): white space at the context's end
// belongs to the continuation; both are encoded as one text; of what that is, the tokens behind the
// context's own are scored.
class PairEncoder {
 public:
  // `tokenizer` null: tokens are bytes. `begin`: stands before a text where the tokenizer puts
  // nothing there; none: a text's first token is not scored. `vocabulary`: of the model. The
  // tokenizer outlives it.
  PairEncoder(const Tokenizer* tokenizer, std::optional<int32_t> begin, int64_t vocabulary);

  // INVALID_ARGUMENT: a token is beyond the model's vocabulary.
  absl::StatusOr<ScoredTokens> Encode(std::string context, std::string continuation);

 private:
  absl::Status Append(const std::string& text, std::vector<int32_t>* out);

  const Tokenizer* tokenizer_;
  std::optional<Encoder> encoder_;
  std::vector<int32_t> before_;
  int64_t vocabulary_;
};

struct LogLikelihood {
  double nats = 0;      // the logarithm of the probability of all that is scored
  int64_t tokens = 0;   // scored
  bool greedy = false;  // each is the likeliest after those before it; where that was requested
};

// One thread at a time. Longer texts than the runner's sequences: Score takes the last tokens
// alone; Roll cuts the text into windows of which each token is scored once, with as many before it
// as its window has.
class Scorer {
 public:
  // `before_pass`: called before each pass through the model; a backend that keeps keys and values
  // forgets them there.
  explicit Scorer(
      ModelRunner& runner, std::function<void()> before_pass = [] {})
      : runner_(runner), before_pass_(std::move(before_pass)) {}

  // REQUIRES: something is scored.
  absl::StatusOr<LogLikelihood> Score(const ScoredTokens& text, bool greedy = false);
  absl::StatusOr<LogLikelihood> Roll(const ScoredTokens& text);

 private:
  // Tokens [first, last) of a window whose inputs begin at `begin`; first > begin.
  absl::StatusOr<LogLikelihood> ScoreWindow(const std::vector<int32_t>& tokens, int64_t begin,
                                            int64_t first, int64_t last);
  absl::StatusOr<bool> IsGreedy(const std::vector<int32_t>& tokens, int64_t first);

  ModelRunner& runner_;
  const std::function<void()> before_pass_;
};

}  // namespace atl

#endif  // ATOLL_WORKER_EVALUATION_SCORER_H_
