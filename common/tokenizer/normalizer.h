// Normalises text before a tokenizer looks for tokens: "normalizer" of tokenizer.json.

#ifndef ATOLL_COMMON_TOKENIZER_NORMALIZER_H_
#define ATOLL_COMMON_TOKENIZER_NORMALIZER_H_

#include <functional>
#include <string>

#include "common/tokenizer/json_fields.h"
#include "common/tokenizer/regex.h"

namespace atl::tokenizer {

// Thread-safe. Text is well-formed UTF-8 before and after. `continues`: what stands before the text
// was given earlier, up to a line end or a space. Nothing that belongs in front of a whole text is
// put there.
using Normalizer = std::function<absl::Status(std::string* text, bool continues)>;

// `where` names the object in messages. null: a normalizer that changes nothing.
absl::StatusOr<Normalizer> ParseNormalizer(const Json& json, const std::string& where,
                                           int depth = 0);

// {"String": ...} or {"Regex": ...}, as Replace and Split have it.
absl::StatusOr<Regex> ParsePattern(const Json& object, const std::string& where);

// Every match of `pattern` replaced.
absl::StatusOr<std::string> Replaced(const Regex& pattern, std::string_view text,
                                     std::string_view content);

}  // namespace atl::tokenizer

#endif  // ATOLL_COMMON_TOKENIZER_NORMALIZER_H_
