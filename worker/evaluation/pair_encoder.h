// A text and what follows it, as tokens of which the latter are scored.

#ifndef ATOLL_WORKER_EVALUATION_PAIR_ENCODER_H_
#define ATOLL_WORKER_EVALUATION_PAIR_ENCODER_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/status.h"
#include "common/tokenizer/tokenizer.h"

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

}  // namespace atl

#endif  // ATOLL_WORKER_EVALUATION_PAIR_ENCODER_H_
