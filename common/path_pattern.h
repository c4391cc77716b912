// Patterns of paths: '*', '?' and [...] within one part of a path, and "**" for any number of
// parts. As in a shell, a name that begins with a dot is matched by a dot alone.

#ifndef ATOLL_COMMON_PATH_PATTERN_H_
#define ATOLL_COMMON_PATH_PATTERN_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "common/files.h"

namespace atl {

// Returns where the first part with a character of patterns begins; npos: there is none.
size_t FindPattern(std::string_view path);

bool MatchesPattern(std::string_view pattern, std::string_view name);

// Counts what a listing leaves out although it may be meant, and names the first of it.
class LeftOut {
 public:
  void Add(const std::string& path, const char* why);
  // "leaves out 2: PATH (a folder), PATH (no permission)"; "": nothing.
  std::string Text() const;

 private:
  int64_t count_ = 0;
  std::string named_;
};

// The files and folders that match, sorted; a folder's name ends with '/'. "**" follows no symbolic
// links. Folders without permission to read them have nothing that matches; `left_out` gets both.
// One that cannot be read for another reason is an error, since what it holds would be missed, and
// so is a match that is a link to nothing (FAILED_PRECONDITION). OUT_OF_RANGE: more than
// `entries_max` names were looked at.
absl::StatusOr<std::vector<std::string>> ExpandPattern(Files& files, const std::string& pattern,
                                                       int64_t entries_max = 1 << 20,
                                                       LeftOut* left_out = nullptr);

// INVALID_ARGUMENT: the path has "~", a "$VARIABLE" or a "{list,of}", which a shell replaces and
// nothing here does, or is an address of a kind that is not read. `field` names it. OK where it
// names a file as it is.
absl::Status CheckPlainPath(std::string_view field, const std::string& path);

}  // namespace atl

#endif  // ATOLL_COMMON_PATH_PATTERN_H_
