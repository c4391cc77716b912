#include "cli/run/program.h"

#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <iostream>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace atl::cli {

absl::StatusOr<std::string> FindProgram(const std::string& name) {
  std::error_code error;
  const auto folder = std::filesystem::read_symlink("/proc/self/exe", error).parent_path();
  const std::string part = name.substr(std::string("atoll-").size());
  // Installed, the programs lie in one folder; in a build tree, each in its own.
  std::vector<std::filesystem::path> candidates = {folder / name,
                                                   folder.parent_path() / part / name};
  const char* path = std::getenv("PATH");
  for (const absl::string_view one : absl::StrSplit(path == nullptr ? "" : path, ':')) {
    if (absl::StartsWith(one, "/"))
      candidates.push_back(std::filesystem::path(std::string(one)) / name);
  }
  for (const auto& candidate : candidates) {
    if (std::filesystem::is_regular_file(candidate, error) &&
        access(candidate.c_str(), X_OK) == 0) {
      return candidate.string();
    }
  }
  return absl::NotFoundError(absl::StrCat("there is no program ", name, " in ", folder.string(),
                                          " or $PATH; install the package ", name));
}

int RunDaemon(const std::string& name, char** arguments) {
  const absl::StatusOr<std::string> program = FindProgram(name);
  if (program.ok()) {
    execv(program->c_str(), arguments);
    std::cerr << "atoll: cannot run " << *program << ": " << std::strerror(errno) << "\n";
  } else {
    std::cerr << "atoll: " << program.status().message() << "\n";
  }
  return 1;
}

}  // namespace atl::cli
