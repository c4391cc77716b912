// The patterns of tokenizer.json, which are written for Oniguruma, on PCRE2's compiler.

#ifndef ATOLL_COMMON_TOKENIZER_REGEX_H_
#define ATOLL_COMMON_TOKENIZER_REGEX_H_

#include <memory>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace atl::tokenizer {

struct Match {
  size_t begin = 0;
  size_t end = 0;
  bool found = false;
};

// Thread-safe.
class Regex {
 public:
  static absl::StatusOr<Regex> Compile(std::string_view pattern);
  // Matches exactly this text.
  static absl::StatusOr<Regex> Literal(std::string_view text);

  Regex(Regex&&) noexcept;
  Regex& operator=(Regex&&) noexcept;
  ~Regex();

  // The first match that begins at `from` or later. RESOURCE_EXHAUSTED: it backtracks too far.
  // REQUIRES: well-formed UTF-8; `from` at a character's start.
  absl::StatusOr<Match> Find(std::string_view text, size_t from) const;

 private:
  struct Compiled;
  explicit Regex(std::unique_ptr<Compiled> compiled);
  std::unique_ptr<Compiled> compiled_;
};

// The same pattern as PCRE2 spells it: White_Space and word characters as Unicode defines them for
// \s and \w, and a class inside a class as their union. For tests.
absl::StatusOr<std::string> PcrePattern(std::string_view pattern);

}  // namespace atl::tokenizer

#endif  // ATOLL_COMMON_TOKENIZER_REGEX_H_
