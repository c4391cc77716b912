// Cutting text at matches, in the five ways of tokenizer.json's "behavior".

#ifndef ATOLL_COMMON_TOKENIZER_SPLIT_H_
#define ATOLL_COMMON_TOKENIZER_SPLIT_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/tokenizer/pre_tokenizer.h"
#include "common/tokenizer/regex.h"

namespace atl::tokenizer {

enum class Behavior : uint8_t {
  kRemoved,             // matches are dropped
  kIsolated,            // each match is a piece
  kMergedWithPrevious,  // it ends the piece before it
  kMergedWithNext,      // it begins the piece after it
  kContiguous,          // neighbouring matches are one piece
};

absl::StatusOr<Behavior> ParseBehavior(const std::string& name, const std::string& where);

// A part of a text that matched, or what lies between two of them.
struct Part {
  size_t begin, end;
  bool match;
};

// All parts of text[range] in order, by a pattern or by a predicate of single characters.
absl::Status PartsByRegex(const Regex& regex, std::string_view piece, size_t base,
                          std::vector<Part>* parts);
using Predicate = bool (*)(int32_t code);
void PartsByPredicate(Predicate predicate, std::string_view piece, size_t base,
                      std::vector<Part>* parts);

// The pieces that `parts` make; none is empty.
void AppendPieces(const std::vector<Part>& parts, Behavior behavior,
                  std::vector<Pieces::Range>* out);

}  // namespace atl::tokenizer

#endif  // ATOLL_COMMON_TOKENIZER_SPLIT_H_
