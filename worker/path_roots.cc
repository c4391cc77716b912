#include "worker/path_roots.h"

#include <glob.h>

#include <algorithm>
#include <filesystem>
#include <system_error>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"

namespace atl::worker {
namespace {

namespace fs = std::filesystem;

constexpr int kEntriesMax = 100'000;

bool IsUrl(absl::string_view path) { return absl::StrContains(path, "://"); }

// A step up, spelt in any way, could leave the root at the server.
bool StepsUp(const std::string& url) {
  const std::string text = absl::AsciiStrToLower(url);
  return absl::StrContains(text, "..") || absl::StrContains(text, "%2e");
}

// Whether `path` is `root` or lies in it; both without a '/' at the end.
bool IsWithin(absl::string_view path, absl::string_view root) {
  root = absl::StripSuffix(root, "/");
  return absl::ConsumePrefix(&path, root) && (path.empty() || path.front() == '/');
}

// What a path leads to; of one that is not there, where it would be.
std::string Resolved(const fs::path& path) {
  std::error_code error;
  const fs::path real = fs::weakly_canonical(fs::absolute(path, error), error);
  return error ? "" : real.string();
}

// The paths that a job's path stands for.
std::vector<std::string> Expanded(const std::string& path) {
  std::vector<std::string> paths = {path};
  glob_t matches{};
  if (glob(path.c_str(), GLOB_NOSORT, nullptr, &matches) == 0) {
    for (size_t i = 0; i < matches.gl_pathc; ++i) paths.emplace_back(matches.gl_pathv[i]);
  }
  globfree(&matches);
  std::error_code error;
  for (const char* suffix : {".bin", ".idx"}) {  // of data in Megatron's format
    if (fs::exists(path + suffix, error)) paths.push_back(path + suffix);
  }
  if (fs::is_directory(path, error)) {
    int left = kEntriesMax;
    for (const auto& entry : fs::directory_iterator(path, error)) {
      if (--left < 0) break;
      paths.push_back(entry.path().string());
    }
  }
  return paths;
}

bool IsAllowed(const std::string& path, const std::vector<std::string>& roots) {
  return std::any_of(roots.begin(), roots.end(), [&](const std::string& root) {
    if (IsUrl(root) || IsUrl(path)) return IsUrl(root) && !StepsUp(path) && IsWithin(path, root);
    const std::string real = Resolved(path), real_root = Resolved(root);
    return !real.empty() && !real_root.empty() && IsWithin(real, real_root);
  });
}

absl::Status CheckPath(const std::string& field, const std::string& path, const char* flag,
                       const std::vector<std::string>& roots) {
  if (path.empty() || roots.empty()) return absl::OkStatus();
  for (const std::string& one : IsUrl(path) ? std::vector{path} : Expanded(path)) {
    if (IsAllowed(one, roots)) continue;
    return absl::PermissionDeniedError(absl::StrCat(
        field, " = \"", path, "\": ", one == path ? "" : absl::StrCat(one, " "),
        "is outside what this worker may read (", flag, " ", absl::StrJoin(roots, ", "), ")"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckRoots(const PathRoots& roots) {
  const auto check = [](const char* flag, const std::vector<std::string>& list) -> absl::Status {
    for (const std::string& root : list) {
      std::error_code error;
      if (IsUrl(root) || fs::is_directory(root, error)) continue;
      return absl::InvalidArgumentError(
          absl::StrCat(flag, " ", root, ": must be a folder that is there, or begin a URL"));
    }
    return absl::OkStatus();
  };
  ATOLL_RETURN_IF_ERROR(check("--data-root", roots.data));
  ATOLL_RETURN_IF_ERROR(check("--model-root", roots.model));
  return check("--remote-root", roots.remote);
}

absl::Status CheckJobPaths(const JobSpec& spec, const PathRoots& roots) {
  ATOLL_RETURN_IF_ERROR(CheckPath("data.path", spec.data.path, "--data-root", roots.data));
  ATOLL_RETURN_IF_ERROR(
      CheckPath("data.validation_path", spec.data.validation_path, "--data-root", roots.data));
  for (const ValidationSet& set : spec.data.validation) {
    ATOLL_RETURN_IF_ERROR(CheckPath("data.validation.path", set.path, "--data-root", roots.data));
  }
  for (const DataSource& source : spec.data.sources) {
    ATOLL_RETURN_IF_ERROR(CheckPath("data.sources.path", source.path, "--data-root", roots.data));
  }
  // Of data.sites a worker gets its own site's paths, as data.path and data.validation_path.
  ATOLL_RETURN_IF_ERROR(
      CheckPath("data.tokenizer_path", spec.data.tokenizer_path, "--model-root", roots.model));
  ATOLL_RETURN_IF_ERROR(
      CheckPath("model.config_path", spec.model.config_path, "--model-root", roots.model));
  ATOLL_RETURN_IF_ERROR(CheckPath("model.initial_weights_path", spec.model.initial_weights_path,
                                  "--model-root", roots.model));
  const std::string& remote = spec.checkpoint.remote;
  if (remote.empty() || roots.remote.empty() || IsAllowed(remote, roots.remote)) {
    return absl::OkStatus();
  }
  return absl::PermissionDeniedError(
      absl::StrCat("checkpoint.remote = \"", remote, "\": is outside what this worker may write ",
                   "(--remote-root ", absl::StrJoin(roots.remote, ", "), ")"));
}

}  // namespace atl::worker
