#include "worker/state/saved_jobs.h"

#include <algorithm>
#include <filesystem>
#include <system_error>

#include "absl/strings/str_cat.h"

namespace atl::worker {

namespace fs = std::filesystem;

std::vector<JobId> SavedJobs(const std::string& folder) {
  std::vector<JobId> jobs;
  std::error_code ignored;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, ignored)) {
    if (entry.is_directory(ignored)) jobs.push_back(entry.path().filename().string());
  }
  std::sort(jobs.begin(), jobs.end());
  return jobs;
}

void RemoveSavedJob(const std::string& folder, const JobId& job) {
  // It may be anything that a coordinator has said.
  if (job.empty() || job == "." || job == ".." || job.find('/') != JobId::npos) return;
  std::error_code ignored;
  fs::remove_all(absl::StrCat(folder, "/", job), ignored);
}

}  // namespace atl::worker
