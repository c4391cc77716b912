// Sizes as users write them, of flags like --memory-bytes.

#ifndef ATOLL_COMMON_PARSE_BYTES_H_
#define ATOLL_COMMON_PARSE_BYTES_H_

#include <cstdint>

#include "common/status.h"

namespace atl {

// "4GiB", "512MiB", "65536", "0": bytes, never negative. KiB, MiB, GiB and TiB are known.
absl::StatusOr<int64_t> ParseBytes(absl::string_view text);

}  // namespace atl

#endif  // ATOLL_COMMON_PARSE_BYTES_H_
