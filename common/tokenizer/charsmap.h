// SentencePiece's precompiled map of characters to their normalized form (NFKC with its additions),
// as tokenizer.json and .model files carry it: a double array over keys, then the texts that
// replace them.

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

  // Normalises as Hugging Face's library does: a short grapheme cluster that begins with a key
  // becomes what replaces the shortest such key, marks and all. REQUIRES: well-formed UTF-8; so is
  // the result.
  std::string NormalizedByCluster(std::string_view text) const;
  // Normalises as SentencePiece's own library does: at each place, the longest key is replaced.
  // REQUIRES: well-formed UTF-8; so is the result.
  std::string NormalizedByLongestKey(std::string_view text) const;

 private:
  struct Key {
    size_t bytes = 0;
    std::string_view replacement;
  };
  // Calls `visit(key)` for each key that `text` begins with, the shortest first, until it is false.
  template <typename Visit>
  void VisitKeys(std::string_view text, const Visit& visit) const;
  // Returns the replacement of the shortest key that `text` begins with.
  std::optional<std::string_view> Replacement(std::string_view text) const;

  std::vector<uint32_t> units_;
  std::string texts_;  // each ends with a zero byte
};

}  // namespace atl::tokenizer

#endif  // ATOLL_COMMON_TOKENIZER_CHARSMAP_H_
