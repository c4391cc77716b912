// Finds out what paths name.

#ifndef ATOLL_COMMON_PATHS_H_
#define ATOLL_COMMON_PATHS_H_

#include <optional>
#include <string>

#include "common/files.h"

namespace atl {

// The kind of file that a path names, links followed.
struct PathInfo {
  bool is_file = false, is_folder = false;  // neither: a device, a FIFO, a socket
  FileIdentity identity;
};
// Nothing where there is nothing, or a link that leads to nothing. Takes no descriptor. Any other
// failure is an error: what cannot be looked at is not absent.
absl::StatusOr<std::optional<PathInfo>> FindPath(const std::string& path);

}  // namespace atl

#endif  // ATOLL_COMMON_PATHS_H_
