// The store in etcd, which any number of coordinators may open: one leads and owns it, the others
// wait. Keys, below the prefix of EtcdAddress:
//
//   leader            the leader (leadership.h)
//   totals            number of the newest step, count and digest of all records (journal.h)
//   record/KEY        a record, under its MakeRecordKey
//   log/NUMBER        the log's lines of one step, under the first one's number
//   trust/...         the registry of members and users, likewise (registry_value.h)
//   staged/NUMBER     a step that is too large for one transaction, in progress
//
// What of store_seal.h is not here is the file with the newest step's number: etcd's members keep
// that. docs/decisions/etcd-store.md has the reasons.

#ifndef ATOLL_COORDINATOR_ETCD_STORE_ETCD_H_
#define ATOLL_COORDINATOR_ETCD_STORE_ETCD_H_

#include <functional>
#include <memory>
#include <string>

#include "coordinator/etcd/client.h"
#include "coordinator/etcd/leadership.h"
#include "coordinator/etcd/values.pb.h"
#include "coordinator/store.h"

namespace atl {

struct EtcdStoreOptions {
  std::string url;  // for ParseEtcdAddress
  TlsOptions tls;
  etcd::Leader self;
  int64_t lease_s = kLeaseTtlS;  // of its leadership
};

// Waits until this process leads (as Leadership::Campaign says), then reads everything: DataLoss,
// naming the key, where a record is not as it was written, or one is missing.
absl::StatusOr<std::unique_ptr<Store>> OpenEtcdStore(
    const EtcdStoreOptions& options, const std::function<bool()>& stop,
    const std::function<void(const etcd::Leader&)>& on_leader);

// OK if the options can be used; says which flag cannot.
absl::Status CheckEtcdOptions(const EtcdStoreOptions& options);

}  // namespace atl

#endif  // ATOLL_COORDINATOR_ETCD_STORE_ETCD_H_
