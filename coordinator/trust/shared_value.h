// Where the registry of who may be in the cluster is kept, if not in the coordinator's own folder.

#ifndef ATOLL_COORDINATOR_TRUST_SHARED_VALUE_H_
#define ATOLL_COORDINATOR_TRUST_SHARED_VALUE_H_

#include <optional>
#include <string>

#include "absl/status/statusor.h"

namespace atl {

class SharedValue {
 public:
  virtual ~SharedValue() = default;

  // Nothing: it was never written. Before the first Write.
  virtual absl::StatusOr<std::optional<std::string>> Read() = 0;
  // Durable when OK. FailedPrecondition: another coordinator leads, and nothing was written.
  virtual absl::Status Write(const std::string& bytes) = 0;
};

}  // namespace atl

#endif  // ATOLL_COORDINATOR_TRUST_SHARED_VALUE_H_
