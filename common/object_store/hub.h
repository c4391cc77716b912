// The Hugging Face hub: hf://[datasets/|models/]ORG/NAME[@REVISION]/PATH.
//
// Without datasets/ or models/ it is the data set of that name, or where there is none the model;
// of models and tokenizers always the model. REVISION is a branch, a tag or a commit; "main" where
// it is left out. HF_ENDPOINT replaces https://huggingface.co; HF_TOKEN, else the file
// HF_TOKEN_PATH or $HF_HOME/token, is sent to it alone.

#ifndef ATOLL_COMMON_OBJECT_STORE_HUB_H_
#define ATOLL_COMMON_OBJECT_STORE_HUB_H_

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "common/object_store/http.h"
#include "common/object_store/object_store.h"

namespace atl {

struct HubPath {
  enum class Type : uint8_t { kEither, kDataset, kModel };
  Type type = Type::kEither;
  std::string repo;  // ORG/NAME
  std::string revision = "main";
  std::string path;  // in the repository; may be empty
};

bool IsHubPath(std::string_view path);

// INVALID_ARGUMENT: not of the form above.
absl::StatusOr<HubPath> ParseHubPath(const std::string& url);

// Read only: Stat, Read and List.
absl::StatusOr<std::unique_ptr<ObjectStore>> OpenHubStore(const std::string& url,
                                                          RetryOptions retry = {});

// Files of a model's repository that this machine needs.
enum class HubFiles { kConfig, kTokenizer, kWeights };

// The folder or file on this machine that has what `path` names, once for each process; any other
// path is returned as it is. Of hf:// that is the hub's own cache (HF_HUB_CACHE, HF_HOME), where it
// has the revision's commit, or the hub does not answer; else the files are fetched into
// `DataCacheFolder()/hub`, laid out likewise. Blocks.
absl::StatusOr<std::string> FetchFromHub(const std::string& path, HubFiles files,
                                         const Cancelled& cancelled = {});

}  // namespace atl

#endif  // ATOLL_COMMON_OBJECT_STORE_HUB_H_
