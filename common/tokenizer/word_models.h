// WordPiece (BERT: the longest token that a word begins with, then the longest continuation, and so
// on) and WordLevel (whole words).

#ifndef ATOLL_COMMON_TOKENIZER_WORD_MODELS_H_
#define ATOLL_COMMON_TOKENIZER_WORD_MODELS_H_

#include <memory>
#include <string>

#include "common/tokenizer/model.h"

namespace atl::tokenizer {

absl::StatusOr<std::unique_ptr<TokenModel>> ParseWordPiece(
    const Json& json, std::shared_ptr<const Vocabulary> vocabulary, const std::string& where);
absl::StatusOr<std::unique_ptr<TokenModel>> ParseWordLevel(
    const Json& json, std::shared_ptr<const Vocabulary> vocabulary, const std::string& where);

}  // namespace atl::tokenizer

#endif  // ATOLL_COMMON_TOKENIZER_WORD_MODELS_H_
