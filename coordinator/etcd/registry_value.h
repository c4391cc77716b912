// The registry of members and users (coordinator/trust), in etcd: one value, which the leader
// writes. It has a journal of its own, so it is written by other threads than the records.

#ifndef ATOLL_COORDINATOR_ETCD_REGISTRY_VALUE_H_
#define ATOLL_COORDINATOR_ETCD_REGISTRY_VALUE_H_

#include <optional>
#include <string>

#include "coordinator/etcd/journal.h"
#include "coordinator/trust/shared_value.h"

namespace atl {

// Not thread-safe.
class RegistryValue : public SharedValue {
 public:
  RegistryValue(EtcdClient* client, Leadership* leadership, const std::string& prefix);

  absl::StatusOr<std::optional<std::string>> Read() override;
  absl::Status Write(const std::string& bytes) override;

 private:
  EtcdClient* const client_;
  Leadership* const leadership_;
  const std::string folder_;
  Journal journal_;
  StoreTotals totals_;
  int parts_ = 0;
  absl::Status failure_;  // of a Write: what is stored is not known
};

}  // namespace atl

#endif  // ATOLL_COORDINATOR_ETCD_REGISTRY_VALUE_H_
