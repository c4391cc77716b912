// Makes text of tokens: "decoder" of tokenizer.json.

#ifndef ATOLL_COMMON_TOKENIZER_DECODER_H_
#define ATOLL_COMMON_TOKENIZER_DECODER_H_

#include <memory>
#include <string>
#include <vector>

#include "common/tokenizer/json_fields.h"

namespace atl::tokenizer {

// Thread-safe. The text is well-formed UTF-8: what is not becomes U+FFFD.
class Decoder {
 public:
  virtual ~Decoder() = default;
  virtual absl::Status Apply(std::vector<std::string>* tokens) const = 0;
};

// null: tokens with a space between them.
absl::StatusOr<std::unique_ptr<Decoder>> ParseDecoder(const Json& json, const std::string& where,
                                                      int depth = 0);

}  // namespace atl::tokenizer

#endif  // ATOLL_COMMON_TOKENIZER_DECODER_H_
