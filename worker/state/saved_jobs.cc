#include "worker/state/saved_jobs.h"

#include <filesystem>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "common/files.h"
#include "common/paths.h"
#include "common/status.h"

namespace atl::worker {

namespace fs = std::filesystem;

absl::StatusOr<std::vector<JobId>> SavedJobs(const std::string& folder) {
  std::vector<JobId> jobs;
  ATOLL_ASSIGN_OR_RETURN(const auto names, RealFiles().List(folder));
  for (const std::string& name : names) {
    ATOLL_ASSIGN_OR_RETURN(const auto found, FindPath(absl::StrCat(folder, "/", name)));
    if (found && found->is_folder) jobs.push_back(name);
  }
  return jobs;
}

void RemoveSavedJob(const std::string& folder, const JobId& job) {
  // It may be anything that a coordinator has said.
  if (job.empty() || job == "." || job == ".." || job.find('/') != JobId::npos) return;
  std::error_code ignored;
  fs::remove_all(absl::StrCat(folder, "/", job), ignored);
}

}  // namespace atl::worker
