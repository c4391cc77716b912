#include "worker/evaluation/scorer.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/masked_tokens.h"

namespace atl {

PairEncoder::PairEncoder(const Tokenizer* tokenizer, std::optional<int32_t> begin,
                         int64_t vocabulary)
    : tokenizer_(tokenizer), vocabulary_(vocabulary) {
  if (tokenizer_ != nullptr) {
    encoder_.emplace(*tokenizer_);
    before_.assign(tokenizer_->before().begin(), tokenizer_->before().end());
  }
  if (before_.empty() && begin.has_value()) before_.push_back(*begin);
}

absl::StatusOr<ScoredTokens> PairEncoder::Encode(std::string context, std::string continuation) {
  const size_t kept = absl::StripTrailingAsciiWhitespace(context).size();
  continuation.insert(0, context, kept);
  context.resize(kept);
  // A begin of a text is not part of what follows a context where the tokenizer puts nothing there.
  const bool begins = context.empty() || (tokenizer_ != nullptr && !tokenizer_->before().empty());
  ScoredTokens text;
  if (begins) text.tokens = before_;
  std::vector<int32_t> alone;
  ATOLL_RETURN_IF_ERROR(Append(context, &alone));
  text.context = std::ssize(text.tokens) + std::ssize(alone);
  ATOLL_RETURN_IF_ERROR(Append(context + continuation, &text.tokens));
  for (const int32_t token : text.tokens) {
    if (token < vocabulary_) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("token ", token, " of the tokenizer is beyond the model's vocabulary of ",
                     vocabulary_, ": leave out the text that makes it"));
  }
  return text;
}

absl::Status PairEncoder::Append(const std::string& text, std::vector<int32_t>* out) {
  if (encoder_.has_value()) return encoder_->Encode(text, out);
  for (const char c : text) out->push_back(static_cast<unsigned char>(c));
  return absl::OkStatus();
}

absl::StatusOr<LogLikelihood> Scorer::Score(const ScoredTokens& text, bool greedy) {
  const int64_t size = std::ssize(text.tokens);
  // The last token is no input.
  const int64_t begin = std::max<int64_t>(0, size - 1 - runner_.seq_len());
  const int64_t first = std::max(text.context, begin + 1);
  if (first >= size) {
    return absl::InvalidArgumentError(
        "nothing is left to score: the tokenizer makes one token of all of it");
  }
  ATOLL_ASSIGN_OR_RETURN(LogLikelihood found, ScoreWindow(text.tokens, begin, first, size));
  if (greedy) {
    ATOLL_ASSIGN_OR_RETURN(found.greedy, IsGreedy(text.tokens, first));
  }
  return found;
}

absl::StatusOr<LogLikelihood> Scorer::Roll(const ScoredTokens& text) {
  const int64_t size = std::ssize(text.tokens), window = runner_.seq_len();
  LogLikelihood sum;
  for (int64_t first = std::max<int64_t>(1, text.context); first < size;) {
    // The last window goes back as far as it can.
    const int64_t last =
        std::min(size, first == std::max<int64_t>(1, text.context) ? std::max(first + 1, window + 1)
                                                                   : first + window);
    const int64_t begin = std::max<int64_t>(0, last - 1 - window);
    ATOLL_ASSIGN_OR_RETURN(const LogLikelihood part, ScoreWindow(text.tokens, begin, first, last));
    sum.nats += part.nats;
    sum.tokens += part.tokens;
    first = last;
  }
  return sum;
}

absl::StatusOr<LogLikelihood> Scorer::ScoreWindow(const std::vector<int32_t>& tokens, int64_t begin,
                                                  int64_t first, int64_t last) {
  ATOLL_CHECK(begin < first && first < last && last <= std::ssize(tokens));
  ModelRunner::Batch batch;
  batch.rows = 1;
  batch.inputs.assign(tokens.begin() + begin, tokens.begin() + last - 1);
  batch.targets.assign(batch.inputs.size(), kIgnoredTarget);
  std::copy(tokens.begin() + first, tokens.begin() + last,
            batch.targets.begin() + first - begin - 1);
  before_pass_();
  ATOLL_ASSIGN_OR_RETURN(const LossSum loss, runner_.Evaluate(batch));
  if (!std::isfinite(loss.nats)) {
    return absl::FailedPreconditionError("the model's loss is not finite; it has diverged");
  }
  return LogLikelihood{-loss.nats, loss.tokens, false};
}

absl::StatusOr<bool> Scorer::IsGreedy(const std::vector<int32_t>& tokens, int64_t first) {
  std::vector<float> logits(static_cast<size_t>(runner_.model().config().vocab));
  for (int64_t next = first; next < std::ssize(tokens); ++next) {
    const int64_t begin = std::max<int64_t>(0, next - runner_.seq_len());
    before_pass_();
    ATOLL_RETURN_IF_ERROR(runner_.Logits(std::span(tokens).subspan(begin, next - begin), logits));
    // The first of equal ones counts.
    const auto likeliest = std::max_element(logits.begin(), logits.end()) - logits.begin();
    if (likeliest != tokens[next]) return false;
  }
  return true;
}

}  // namespace atl
