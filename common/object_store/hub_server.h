// Requests to the hub, by its resolve, tree and revision addresses.

#ifndef ATOLL_COMMON_OBJECT_STORE_HUB_SERVER_H_
#define ATOLL_COMMON_OBJECT_STORE_HUB_SERVER_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "common/object_store/hub.h"

namespace atl {

struct HubFile {
  std::string path;  // in the repository
  int64_t bytes = 0;
  std::string sha256;  // of its bytes, where it is large (LFS); else empty
  std::string tag;     // changes with its bytes
};

// Endpoint and token are those of the environment when it is made. Thread-safe. REQUIRES of every
// place: its type is a data set or a model.
class HubServer {
 public:
  explicit HubServer(RetryOptions retry = {});

  // Files at the revision, by their paths in the repository.
  std::unique_ptr<ObjectStore> Open(const HubPath& place) const;

  // All files below place.path. NOT_FOUND, PERMISSION_DENIED, UNAVAILABLE: as the hub answers.
  absl::StatusOr<std::vector<HubFile>> List(const HubPath& place, const Cancelled& cancelled) const;

  // Returns the commit of the revision.
  absl::StatusOr<std::string> FindCommit(const HubPath& place, const Cancelled& cancelled) const;

 private:
  absl::StatusOr<WebAnswer> Fetch(const std::string& url, const Cancelled& cancelled) const;

  const RetryOptions retry_;
  std::string endpoint_;
  std::map<std::string, std::string> headers_;
};

// HF_HOME, else where the hub's own tools have it.
std::string HubHome();

}  // namespace atl

#endif  // ATOLL_COMMON_OBJECT_STORE_HUB_SERVER_H_
