// Values of any size in etcd, whose requests are limited to 1.5 MB: one that is longer than
// kPartBytes lies in parts, each under a key of its own behind the first one's. A checksum over key
// and value shows that it is whole.

#ifndef ATOLL_COORDINATOR_ETCD_VALUES_H_
#define ATOLL_COORDINATOR_ETCD_VALUES_H_

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "coordinator/etcd/client.h"

namespace atl {

inline constexpr size_t kPartBytes = size_t{512} << 10;

using EtcdOperations = std::vector<etcdserverpb::RequestOp>;

// The end of the range of all keys that begin with `prefix`. REQUIRES: not empty, and it ends with
// no byte 0xff.
std::string ComputePrefixEnd(std::string prefix);

// Adds what puts `bytes` under folder + key, replacing a value that had `parts_before` parts (0:
// none, or unknown where none can be longer). Returns the number of parts.
int PutValue(const std::string& folder, const std::string& key, absl::string_view bytes,
             int parts_before, EtcdOperations* operations);
// Adds what deletes the value under folder + key, all its parts.
void EraseValue(const std::string& folder, const std::string& key, EtcdOperations* operations);

struct EtcdValue {
  std::string key;  // without the folder
  std::string bytes;
  int parts = 0;
  uint64_t checksum = 0;
  bool whole = false;  // all parts are there, and fit the checksum
};

// Puts parts together again: of keys in their order, by any writer.
class ValueParts {
 public:
  // Calls `on_value` for every value. It outlives this.
  explicit ValueParts(const std::function<absl::Status(EtcdValue)>& on_value)
      : on_value_(on_value) {}

  // `key`: without the folder. Ends with the first error of `on_value`.
  absl::Status Add(absl::string_view key, const std::string& stored);
  absl::Status Finish();

 private:
  const std::function<absl::Status(EtcdValue)>& on_value_;
  std::optional<EtcdValue> value_;
  int parts_ = 0;  // that it has as its first one says
};

// Calls `on_value` for every value of the folder, in the order of keys, as of `revision` (0: the
// newest; then it is set to the one that is read). Ends with the first error.
absl::Status ReadValues(EtcdClient* client, const std::string& folder,
                        const EtcdClient::GoOn& go_on, int64_t* revision,
                        const std::function<absl::Status(EtcdValue)>& on_value);

}  // namespace atl

#endif  // ATOLL_COORDINATOR_ETCD_VALUES_H_
