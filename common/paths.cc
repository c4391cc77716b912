#include "common/paths.h"

#include <fnmatch.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/status.h"

namespace atl {
namespace {

constexpr size_t kMatchesMax = 1 << 20;

std::string Join(const std::string& folder, const std::string& name) {
  if (folder.empty() || folder.back() == '/') return folder + name;
  return absl::StrCat(folder, "/", name);
}

// Names in the folder that fit; none where it is no folder, or is closed to this process.
absl::StatusOr<std::vector<std::string>> ListMatches(Files& files, const std::string& folder,
                                                     const std::string& pattern) {
  auto names = files.List(folder.empty() ? "." : folder);
  if (absl::IsNotFound(names.status()) || absl::IsPermissionDenied(names.status())) {
    return std::vector<std::string>();
  }
  ATOLL_RETURN_IF_ERROR(names.status());
  std::erase_if(*names, [&](const std::string& name) {
    return fnmatch(pattern.c_str(), name.c_str(), FNM_PERIOD) != 0;
  });
  return names;
}

}  // namespace

absl::StatusOr<std::vector<std::string>> FindMatches(Files& files, const std::string& pattern) {
  std::vector<std::string> found = {!pattern.empty() && pattern.front() == '/' ? "/" : ""};
  const std::vector<std::string> parts = absl::StrSplit(pattern, '/', absl::SkipEmpty());
  for (const std::string& part : parts) {
    std::vector<std::string> longer;
    for (const std::string& folder : found) {
      if (part.find_first_of("*?[\\") == std::string::npos) {
        longer.push_back(Join(folder, part));  // looked at in the end
        continue;
      }
      ATOLL_ASSIGN_OR_RETURN(const auto names, ListMatches(files, folder, part));
      for (const std::string& name : names) longer.push_back(Join(folder, name));
      if (longer.size() > kMatchesMax) {
        return absl::ResourceExhaustedError(
            absl::StrCat(pattern, ": more than ", kMatchesMax, " paths fit; name fewer"));
      }
    }
    found = std::move(longer);
  }
  std::vector<std::string> there;
  for (std::string& path : found) {
    const auto info = FindPath(path);
    if (absl::IsPermissionDenied(info.status())) continue;
    ATOLL_RETURN_IF_ERROR(info.status());
    if (info->has_value()) there.push_back(std::move(path));
  }
  std::sort(there.begin(), there.end());
  return there;
}

}  // namespace atl
