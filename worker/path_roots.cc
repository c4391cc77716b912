#include "worker/path_roots.h"

#include <algorithm>
#include <filesystem>
#include <set>
#include <system_error>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "common/path_pattern.h"
#include "common/paths.h"

namespace atl::worker {
namespace {

namespace fs = std::filesystem;

bool IsUrl(absl::string_view path) { return absl::StrContains(path, "://"); }

// A step up, spelt in any way, could leave the root at the server.
bool StepsUp(const std::string& url) {
  const std::string text = absl::AsciiStrToLower(url);
  return absl::StrContains(text, "..") || absl::StrContains(text, "%2e");
}

// Returns whether `path` is `root` or lies in it; both without a '/' at the end.
bool IsWithin(absl::string_view path, absl::string_view root) {
  root = absl::StripSuffix(root, "/");
  return absl::ConsumePrefix(&path, root) && (path.empty() || path.front() == '/');
}

// Returns what a path leads to; for one that is missing, where it would be.
std::string Resolved(const fs::path& path) {
  std::error_code error;
  const fs::path real = fs::weakly_canonical(fs::absolute(path, error), error);
  return error ? "" : real.string();
}

bool IsBelow(const std::string& path, const std::vector<std::string>& roots) {
  return std::any_of(roots.begin(), roots.end(), [&](const std::string& root) {
    if (IsUrl(root) || IsUrl(path)) return IsUrl(root) && !StepsUp(path) && IsWithin(path, root);
    const std::string real = Resolved(path), real_root = Resolved(root);
    return !real.empty() && !real_root.empty() && IsWithin(real, real_root);
  });
}

// Limits of what one field may name.
struct Limits {
  const std::vector<std::string>& roots;  // empty: all
  const std::vector<std::string>& never;
};

bool IsAllowed(const std::string& path, const Limits& limits) {
  return (limits.roots.empty() || IsBelow(path, limits.roots)) && !IsBelow(path, limits.never);
}

// Adds the symbolic links below a folder at any depth, those below folders to which they lead, too,
// unless these are outside. All else there lies where the folder does.
absl::Status AddLinks(const std::string& folder, const Limits& limits, std::set<std::string>* seen,
                      std::vector<std::string>* paths) {
  std::vector<std::string> left = {folder};
  while (!left.empty()) {
    const std::string at = left.back();
    left.pop_back();
    ATOLL_ASSIGN_OR_RETURN(const auto found, FindPath(at));
    if (!found || !found->is_folder || !IsAllowed(at, limits)) continue;
    if (!seen->insert(Resolved(at)).second) continue;
    std::error_code error, unknown;
    // A folder without permission cannot be read later, either.
    fs::recursive_directory_iterator entry(at, fs::directory_options::skip_permission_denied,
                                           error);
    for (; !error && entry != fs::recursive_directory_iterator(); entry.increment(error)) {
      const bool is_link = entry->is_symlink(unknown);
      if (unknown) error = unknown;
      if (error) break;
      if (!is_link) continue;
      paths->push_back(entry->path().string());
      left.push_back(entry->path().string());
    }
    if (error) {
      return absl::UnavailableError(absl::StrCat(at, ": cannot be listed: ", error.message()));
    }
  }
  return absl::OkStatus();
}

// Lists what a job's path stands for, besides itself: what a pattern fits, parts of data, links in
// folders. All of it, or an error.
absl::StatusOr<std::vector<std::string>> Expanded(const std::string& path, const Limits& limits) {
  ATOLL_ASSIGN_OR_RETURN(std::vector<std::string> paths, ExpandPattern(RealFiles(), path));
  for (const char* suffix : {".bin", ".idx"}) {  // of data in Megatron's format
    ATOLL_ASSIGN_OR_RETURN(const auto found, FindPath(path + suffix));
    if (found) paths.push_back(path + suffix);
  }
  // Without roots a user who can make a link could name its target: whole trees are not walked.
  if (limits.roots.empty()) return paths;
  std::vector<std::string> folders = paths;
  folders.push_back(path);
  std::set<std::string> seen;
  for (const std::string& folder : folders) {
    ATOLL_RETURN_IF_ERROR(AddLinks(folder, limits, &seen, &paths));
  }
  return paths;
}

absl::Status CheckPath(const std::string& field, const std::string& path, const char* flag,
                       const Limits& limits) {
  const std::vector<std::string>& roots = limits.roots;
  if (path.empty() || (roots.empty() && limits.never.empty())) return absl::OkStatus();
  const auto refused = [&](const std::string& one) {
    const std::string what = one == path ? "" : absl::StrCat(one, " ");
    if (IsBelow(one, limits.never)) {
      return absl::PermissionDeniedError(
          absl::StrCat(field, " = \"", path, "\": ", what,
                       "is the system's or this worker's own, which no job reads"));
    }
    return absl::PermissionDeniedError(absl::StrCat(field, " = \"", path, "\": ", what,
                                                    "is outside what this worker may read (", flag,
                                                    " ", absl::StrJoin(roots, ", "), ")"));
  };
  if (!IsAllowed(path, limits)) return refused(path);  // before anything there is looked at
  if (IsUrl(path)) return absl::OkStatus();
  const auto all = Expanded(path, limits);
  if (!all.ok()) return Annotate(all.status(), absl::StrCat(field, " = \"", path, "\""));
  for (const std::string& one : *all) {
    if (!IsAllowed(one, limits)) return refused(one);
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckRoots(const PathRoots& roots) {
  const auto check = [](const char* flag, const std::vector<std::string>& list) -> absl::Status {
    for (const std::string& root : list) {
      if (IsUrl(root)) continue;
      const auto found = FindPath(root);
      ATOLL_RETURN_IF_ERROR(Annotate(found.status(), absl::StrCat(flag, " ", root)));
      if (*found && (*found)->is_folder) continue;
      return absl::InvalidArgumentError(
          absl::StrCat(flag, " ", root, ": must be a folder that is there, or begin a URL"));
    }
    return absl::OkStatus();
  };
  ATOLL_RETURN_IF_ERROR(check("--data-root", roots.data));
  ATOLL_RETURN_IF_ERROR(check("--model-root", roots.model));
  return check("--remote-root", roots.remote);
}

bool MayReadUrl(const std::string& url, const PathRoots& roots) {
  return roots.data.empty() || IsBelow(url, roots.data) || IsBelow(url, roots.model);
}

absl::Status CheckJobPaths(const JobSpec& spec, const PathRoots& roots) {
  const Limits data{roots.data, roots.never}, model{roots.model, roots.never};
  ATOLL_RETURN_IF_ERROR(CheckPath("data.path", spec.data.path, "--data-root", data));
  ATOLL_RETURN_IF_ERROR(
      CheckPath("data.validation_path", spec.data.validation_path, "--data-root", data));
  for (const ValidationSet& set : spec.data.validation) {
    ATOLL_RETURN_IF_ERROR(CheckPath("data.validation.path", set.path, "--data-root", data));
  }
  for (const EvaluationSpec& evaluation : spec.evaluation) {
    ATOLL_RETURN_IF_ERROR(CheckPath("evaluation.path", evaluation.path, "--data-root", data));
  }
  for (const DataSource& source : spec.data.sources) {
    ATOLL_RETURN_IF_ERROR(CheckPath("data.sources.path", source.path, "--data-root", data));
  }
  // A worker gets its own site's paths of data.sites, as data.path and data.validation_path.
  ATOLL_RETURN_IF_ERROR(
      CheckPath("data.tokenizer_path", spec.data.tokenizer_path, "--model-root", model));
  ATOLL_RETURN_IF_ERROR(
      CheckPath("model.config_path", spec.model.config_path, "--model-root", model));
  ATOLL_RETURN_IF_ERROR(CheckPath("model.initial_weights_path", spec.model.initial_weights_path,
                                  "--model-root", model));
  ATOLL_RETURN_IF_ERROR(CheckPath("adapter.path", spec.adapter.path, "--model-root", model));
  ATOLL_RETURN_IF_ERROR(
      CheckPath("objective.reference", spec.objective.reference, "--model-root", model));
  const std::string& remote = spec.checkpoint.remote;
  if (remote.empty() || IsAllowed(remote, {roots.remote, roots.never})) {
    return absl::OkStatus();
  }
  return absl::PermissionDeniedError(
      absl::StrCat("checkpoint.remote = \"", remote, "\": is outside what this worker may write ",
                   "(--remote-root ", absl::StrJoin(roots.remote, ", "), ")"));
}

}  // namespace atl::worker
