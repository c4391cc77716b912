// Normalises text before a tokenizer looks for tokens: "normalizer" of tokenizer.json.

#ifndef ATOLL_COMMON_TOKENIZER_NORMALIZER_H_
#define ATOLL_COMMON_TOKENIZER_NORMALIZER_H_

#include <memory>
#include <string>

#include "common/tokenizer/json_fields.h"
#include "common/tokenizer/regex.h"

namespace atl::tokenizer {

// Thread-safe. Text is well-formed UTF-8 before and after.
class Normalizer {
 public:
  virtual ~Normalizer() = default;
  // `continues`: what stands before the text was given earlier, up to a line end or a space.
  // Nothing that belongs in front of a whole text is put there.
  virtual absl::Status Apply(std::string* text, bool continues) const = 0;
};

// `where` names the object in messages. null: a normalizer that changes nothing.
absl::StatusOr<std::unique_ptr<Normalizer>> ParseNormalizer(const Json& json,
                                                            const std::string& where,
                                                            int depth = 0);

// {"String": ...} or {"Regex": ...}, as Replace and Split have it.
absl::StatusOr<Regex> ParsePattern(const Json& object, const std::string& where);

// Every match of `pattern` replaced.
absl::StatusOr<std::string> Replaced(const Regex& pattern, std::string_view text,
                                     std::string_view content);

}  // namespace atl::tokenizer

#endif  // ATOLL_COMMON_TOKENIZER_NORMALIZER_H_
