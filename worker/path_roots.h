// Decides what a job may make a worker read and write: files under --data-root and --model-root,
// and URLs that begin with one; its remote tier under --remote-root; and never the worker's own
// keys. A job file comes from another user, who has no right to the worker's own files.

#ifndef ATOLL_WORKER_PATH_ROOTS_H_
#define ATOLL_WORKER_PATH_ROOTS_H_

#include <string>
#include <vector>

#include "common/protocol/job_spec.h"
#include "common/status.h"

namespace atl::worker {

struct PathRoots {
  // Folders, and beginnings of URLs ("s3://bucket/prefix"); empty: whatever the process may read.
  std::vector<std::string> data;
  std::vector<std::string> model;        // also of tokenizers
  std::vector<std::string> remote = {};  // of checkpoint.remote, which workers write
  // Folders and files that no job reads, wherever the roots are: keys, what the system says of
  // processes.
  std::vector<std::string> never = {};
};

// `App` is CLI::App.
template <class App>
void AddRootFlags(App& app, PathRoots* roots) {
  app.add_option("--data-root", roots->data,
                 "folder or URL prefix to which jobs' data is confined; may be repeated; default: "
                 "all that this user may read")
      ->allow_extra_args(false);
  app.add_option("--model-root", roots->model, "likewise, for models and tokenizers")
      ->allow_extra_args(false);
  app.add_option("--remote-root", roots->remote,
                 "likewise, for the remote tier of checkpoints, which this worker writes")
      ->allow_extra_args(false);
}

// OK if every root is a folder that is there, or a URL.
absl::Status CheckRoots(const PathRoots& roots);

// Returns whether a redirection may lead there: anywhere without --data-root, else below a root of
// any kind.
bool MayReadUrl(const std::string& url, const PathRoots& roots);

// PERMISSION_DENIED, naming the field and the flag, if the job reads or writes anything outside.
// Symbolic links are followed first: of a path, of every file that a pattern fits, and of those in
// a folder, at any depth.
absl::Status CheckJobPaths(const JobSpec& spec, const PathRoots& roots);

}  // namespace atl::worker

#endif  // ATOLL_WORKER_PATH_ROOTS_H_
