// The store in etcd, which any number of coordinators may open: one leads and owns it, the others
// wait. Keys, below the prefix of EtcdAddress:
//
//   leader        the leader (leadership.h)
//   step/NUMBER   the log of steps, which make the records (step_log.h)
//   trust/step/...  likewise, of the registry of members and users (coordinator/trust)
//
// The log of events is not among them: it is the leader's own, in its folder, as the audit log and
// the curves of its page are. docs/decisions/etcd-store.md has the reasons.

#ifndef ATOLL_COORDINATOR_ETCD_STORE_ETCD_H_
#define ATOLL_COORDINATOR_ETCD_STORE_ETCD_H_

#include <functional>
#include <memory>
#include <string>

#include "coordinator/etcd/client.h"
#include "coordinator/etcd/leadership.h"
#include "coordinator/etcd/stored.pb.h"
#include "coordinator/store.h"

namespace atl {

struct EtcdStoreOptions {
  std::string url;           // for ParseEtcdAddress
  std::string lines_folder;  // of the log of events
  TlsOptions tls;
  etcd::Leader self;
  int64_t lease_s = kLeaseTtlS;  // of its leadership
};

// Waits until this process leads (as Leadership::Campaign says), then reads everything: DataLoss,
// naming the entry, where one is not as it was written, or is missing.
absl::StatusOr<std::unique_ptr<Store>> OpenEtcdStore(
    const EtcdStoreOptions& options, const std::function<bool()>& stop,
    const std::function<void(const etcd::Leader&)>& on_leader);

// OK if the options can be used; says which flag cannot.
absl::Status CheckEtcdOptions(const EtcdStoreOptions& options);

}  // namespace atl

#endif  // ATOLL_COORDINATOR_ETCD_STORE_ETCD_H_
