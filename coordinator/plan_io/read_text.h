// Whole text files that the user names.

#ifndef ATOLL_COORDINATOR_PLAN_IO_READ_TEXT_H_
#define ATOLL_COORDINATOR_PLAN_IO_READ_TEXT_H_

#include <cstdint>
#include <istream>
#include <string>

#include "absl/status/statusor.h"

namespace atl {

// The error says that there is no such file, that it is a folder, or that it is larger than that;
// no more than that is read.
absl::StatusOr<std::string> ReadText(const std::string& path, int64_t most_bytes);
absl::StatusOr<std::string> ReadText(std::istream& file, const std::string& path,
                                     int64_t most_bytes);

}  // namespace atl

#endif  // ATOLL_COORDINATOR_PLAN_IO_READ_TEXT_H_
