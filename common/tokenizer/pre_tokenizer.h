// Cuts normalized text into the pieces within which a model looks for tokens: "pre_tokenizer" of
// tokenizer.json.

#ifndef ATOLL_COMMON_TOKENIZER_PRE_TOKENIZER_H_
#define ATOLL_COMMON_TOKENIZER_PRE_TOKENIZER_H_

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "common/tokenizer/json_fields.h"

namespace atl::tokenizer {

// A text and its pieces in order. Steps cut pieces further, drop parts, or rewrite the text.
struct Pieces {
  struct Range {
    size_t begin, end;
  };
  std::string text;
  std::vector<Range> ranges;
  bool at_start = true;    // the text is the beginning of what the user gave
  bool continues = false;  // what stands before the text was given earlier (normalizer.h)

  std::string_view piece(const Range& range) const {
    return std::string_view(text).substr(range.begin, range.end - range.begin);
  }
};

// Thread-safe. Text is well-formed UTF-8 before and after.
using PreTokenizer = std::function<absl::Status(Pieces* pieces)>;

struct ParsedPreTokenizer {
  std::vector<PreTokenizer> steps;
  // The last step spells bytes as characters (byte_level.h). It is left out of `steps`: the model
  // takes the bytes as they are.
  bool bytes_are_symbols = false;
};

// null: the whole text is one piece. `where` names the object in messages.
absl::StatusOr<ParsedPreTokenizer> ParsePreTokenizer(const Json& json, const std::string& where);

}  // namespace atl::tokenizer

#endif  // ATOLL_COMMON_TOKENIZER_PRE_TOKENIZER_H_
