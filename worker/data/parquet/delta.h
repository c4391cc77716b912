// Parquet's delta encodings: whole numbers by their differences, texts by their lengths or by what
// they share with the one before.

#ifndef ATOLL_WORKER_DATA_PARQUET_DELTA_H_
#define ATOLL_WORKER_DATA_PARQUET_DELTA_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace atl::parquet {

// DELTA_BINARY_PACKED at the front of `bytes`, which then is what follows. Sums wrap, as those of
// writers do. INVALID_ARGUMENT: damaged, or there are not `count` of them.
absl::StatusOr<std::vector<int64_t>> TakeDeltas(int64_t count, std::string_view* bytes);

// DELTA_LENGTH_BYTE_ARRAY: the texts lie in `bytes`.
absl::StatusOr<std::vector<std::string_view>> TakeTexts(int64_t count, std::string_view* bytes);

// DELTA_BYTE_ARRAY: the texts lie in `*joined`, which they fill up to `bytes_max` bytes.
absl::StatusOr<std::vector<std::string_view>> TakeTextsWithPrefixes(int64_t count,
                                                                    int64_t bytes_max,
                                                                    std::string_view* bytes,
                                                                    std::string* joined);

// A number of 7 bits a byte, the lowest first; its bytes may end early.
uint64_t TakeVarint(std::string_view* bytes);

}  // namespace atl::parquet

#endif  // ATOLL_WORKER_DATA_PARQUET_DELTA_H_
