#include "worker/evaluation/pair_encoder.h"

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"

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

}  // namespace atl
