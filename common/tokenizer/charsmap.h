// SentencePiece's precompiled map of characters to their normalized form (NFKC with its additions),
// as tokenizer.json carries it: a double array over keys, then the texts that replace them.

#ifndef ATOLL_COMMON_TOKENIZER_CHARSMAP_H_
#define ATOLL_COMMON_TOKENIZER_CHARSMAP_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace atl::tokenizer {

// Thread-safe.
class Charsmap {
 public:
  // Empty: nothing is replaced. Every walk stays inside the array, whatever the bytes say.
  static absl::StatusOr<Charsmap> Parse(std::string bytes);

  // REQUIRES: well-formed UTF-8; so is the result.
  std::string Normalized(std::string_view text) const;

 private:
  // What replaces the shortest key that `text` begins with.
  std::optional<std::string_view> Replacement(std::string_view text) const;

  std::vector<uint32_t> units_;
  std::string texts_;  // each ends with a zero byte
};

}  // namespace atl::tokenizer

#endif  // ATOLL_COMMON_TOKENIZER_CHARSMAP_H_
