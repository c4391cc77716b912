// What paths name, and which paths fit a pattern.

#ifndef ATOLL_COMMON_PATHS_H_
#define ATOLL_COMMON_PATHS_H_

#include <optional>
#include <string>
#include <vector>

#include "common/files.h"

namespace atl {

// What a path names, links followed.
struct PathInfo {
  bool is_file = false, is_folder = false;  // neither: a device, a FIFO, a socket
  FileIdentity identity;
};
// Nothing where there is nothing, or a link that leads to nothing. Takes no descriptor. Any other
// failure is an error: what cannot be looked at is not absent.
absl::StatusOr<std::optional<PathInfo>> FindPath(const std::string& path);

// The paths that are there and fit a pattern of the shell ('*', '?' and '[...]' in any part),
// sorted. A name with a '.' in front fits no wildcard. Folders without permission to read them have
// nothing that fits; one that cannot be read for another reason is an error, since what it holds
// would be missed.
absl::StatusOr<std::vector<std::string>> FindMatches(Files& files, const std::string& pattern);

}  // namespace atl

#endif  // ATOLL_COMMON_PATHS_H_
