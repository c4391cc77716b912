// Between the standard library's views, which the tokenizers use, and Abseil's, which Debian builds
// as a type of its own.

#ifndef ATOLL_COMMON_TOKENIZER_VIEWS_H_
#define ATOLL_COMMON_TOKENIZER_VIEWS_H_

#include <xxhash.h>

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/string_view.h"

namespace atl::tokenizer {

inline absl::string_view View(std::string_view text) { return {text.data(), text.size()}; }

struct TextHash {
  using is_transparent = void;
  size_t operator()(std::string_view text) const { return XXH3_64bits(text.data(), text.size()); }
};

// Ids by text, looked up without making a string.
using TextIds = absl::flat_hash_map<std::string, int32_t, TextHash, std::equal_to<>>;

}  // namespace atl::tokenizer

#endif  // ATOLL_COMMON_TOKENIZER_VIEWS_H_
