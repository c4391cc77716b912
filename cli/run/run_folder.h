// The folder that `atoll run` keeps its cluster and job in:
//
//   run.toml                    which job, how many parameter servers (cli/config.proto, RunRecord)
//   coordinator, server-N, worker-N, and .log of each
//   coordinator.toml, ...       flags that a user adds
//   model                       the exported model, unless --export says otherwise

#ifndef ATOLL_CLI_RUN_RUN_FOLDER_H_
#define ATOLL_CLI_RUN_RUN_FOLDER_H_

#include <memory>
#include <string>

#include "cli/config.pb.h"
#include "common/state_folder.h"
#include "common/status.h"

namespace atl::cli {

class RunFolder {
 public:
  // Makes it, or opens that of an earlier run, and locks it. Errors begin with "--folder PATH": it
  // holds something else, or another process runs on it.
  static absl::StatusOr<RunFolder> Open(const std::string& path);

  const std::string& path() const { return path_; }  // absolute
  const v1::RunRecord& record() const { return record_; }
  absl::Status Write(const v1::RunRecord& record);

 private:
  RunFolder(std::string path, std::unique_ptr<StateFolder> lock)
      : path_(std::move(path)), lock_(std::move(lock)) {}

  std::string path_;
  std::unique_ptr<StateFolder> lock_;
  v1::RunRecord record_;
};

// The job that is trained where no file is named.
extern const char kShippedJob[];  // text of alice.toml
extern const char kShippedText[];

// Writes both to the folder, where they are not there yet.
absl::Status WriteShippedJob(const std::string& folder);

}  // namespace atl::cli

#endif  // ATOLL_CLI_RUN_RUN_FOLDER_H_
