// The folder that `atoll export` writes: what may be in it before, the tokenizer's files, and how
// text is generated.

#ifndef ATOLL_CLI_MODEL_EXPORT_FOLDER_H_
#define ATOLL_CLI_MODEL_EXPORT_FOLDER_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/protocol/job_spec.h"

namespace atl::cli {

// OK: the folder is not there, is empty, or holds nothing but an earlier export. ALREADY_EXISTS
// names a file that is of something else.
absl::Status CheckExportFolder(const std::string& folder);

// Copies the files of the tokenizer at `path` (a file, or a folder) and returns their names. A
// tokenizer.json without a tokenizer_config.json gets one, which transformers needs to load it.
// NOT_FOUND: it is not on this machine.
absl::StatusOr<std::vector<std::string>> CopyTokenizer(const std::string& path,
                                                       const std::string& folder);

// Copies the generation_config.json of the folder that the job's model came from, if it has one.
// NOT_FOUND: that folder is not on this machine.
absl::Status CopyGenerationConfig(const ModelSpec& model, const std::string& folder);

}  // namespace atl::cli

#endif  // ATOLL_CLI_MODEL_EXPORT_FOLDER_H_
