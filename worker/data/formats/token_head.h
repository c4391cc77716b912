// Reads the beginning of a file of raw tokens.

#ifndef ATOLL_WORKER_DATA_FORMATS_TOKEN_HEAD_H_
#define ATOLL_WORKER_DATA_FORMATS_TOKEN_HEAD_H_

#include <cstdint>
#include <span>
#include <string_view>

#include "absl/status/statusor.h"

namespace atl {

// The place where tokens begin, and their width; 0: the file does not say.
struct TokenHead {
  int64_t begin_bytes = 0;
  int64_t token_bytes = 0;
};

// Headers of llm.c: 256 int32, of which the first is a magic number, then a version and the number
// of tokens. `head`: the first kFileKindBytes of a file of `file_bytes`, or all of it.
// INVALID_ARGUMENT, without the file's name: another kind of file or text (common/file_kind.h), a
// header that contradicts the size, one of llm.c's other files, or what looks like a header of an
// unknown kind.
absl::StatusOr<TokenHead> ParseTokenHead(std::string_view head, int64_t file_bytes);

// Tokens of a sample of a file, in order, from an even place on. INVALID_ARGUMENT: every second
// number is so small, or so like the upper half of a float, that these are halves of wider ones.
absl::Status CheckTokenWidth(std::span<const int32_t> tokens, int64_t token_bytes);

}  // namespace atl

#endif  // ATOLL_WORKER_DATA_FORMATS_TOKEN_HEAD_H_
