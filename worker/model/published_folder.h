// Which files of a Hugging Face folder hold a model's weights, and what a folder is that holds
// none.

#ifndef ATOLL_WORKER_MODEL_PUBLISHED_FOLDER_H_
#define ATOLL_WORKER_MODEL_PUBLISHED_FOLDER_H_

#include <string>
#include <vector>

#include "common/status.h"

namespace atl {

inline constexpr char kWeightsFile[] = "model.safetensors";
inline constexpr char kWeightsIndexFile[] = "model.safetensors.index.json";

std::string JoinPath(const std::string& dir, absl::string_view name);

// INVALID_ARGUMENT: the folder is an adapter's alone.
absl::Status CheckIsModelFolder(const std::string& dir);

// model.safetensors, or the parts that model.safetensors.index.json names, in order.
// INVALID_ARGUMENT says what there is instead, and what to do.
absl::StatusOr<std::vector<std::string>> FindWeightFiles(const std::string& dir);

// The error for tensors that no file of the folder has. REQUIRES: there are some, sorted.
absl::Status MissingTensors(const std::string& dir, const std::vector<std::string>& missing);

}  // namespace atl

#endif  // ATOLL_WORKER_MODEL_PUBLISHED_FOLDER_H_
