// What git leaves in place of a large file where Git LFS did not fetch it.

#ifndef ATOLL_COMMON_GIT_LFS_H_
#define ATOLL_COMMON_GIT_LFS_H_

#include "absl/strings/match.h"
#include "common/status.h"

namespace atl {

// INVALID_ARGUMENT, with what to do, where `text`, the beginning of the file at `path`, is that of
// a pointer.
inline absl::Status CheckNoLfsPointer(absl::string_view text, absl::string_view path) {
  if (!absl::StartsWith(text, "version https://git-lfs.github.com/spec/")) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(path, ": is a Git LFS pointer, not the file itself: run `git lfs pull` in its ",
                   "folder, or download the file again"));
}

}  // namespace atl

#endif  // ATOLL_COMMON_GIT_LFS_H_
