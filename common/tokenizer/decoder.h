// Makes text of tokens: "decoder" of tokenizer.json.

#ifndef ATOLL_COMMON_TOKENIZER_DECODER_H_
#define ATOLL_COMMON_TOKENIZER_DECODER_H_

#include <functional>
#include <string>
#include <vector>

#include "common/tokenizer/json_fields.h"

namespace atl::tokenizer {

// Makes fewer, longer texts of tokens. Thread-safe. The text is well-formed UTF-8: what is not
// becomes U+FFFD.
using Decoder = std::function<absl::Status(std::vector<std::string>* tokens)>;

// null: tokens with a space between them.
absl::StatusOr<Decoder> ParseDecoder(const Json& json, const std::string& where, int depth = 0);

}  // namespace atl::tokenizer

#endif  // ATOLL_COMMON_TOKENIZER_DECODER_H_
