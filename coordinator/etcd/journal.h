// Steps as transactions of etcd. Each compares that this process leads and that the totals are
// those of the step before, so a step is carried out once, however often it is sent, and never by
// one that does not lead any more.
//
// etcd takes 128 operations and 1.5 MB in a transaction. A larger step is first stored separately,
// in batches; the transaction that writes the new totals says how many, and makes it durable; then
// the batches are carried out. A coordinator that finds such totals carries them out first.

#ifndef ATOLL_COORDINATOR_ETCD_JOURNAL_H_
#define ATOLL_COORDINATOR_ETCD_JOURNAL_H_

#include <string>

#include "coordinator/etcd/leadership.h"
#include "coordinator/etcd/values.h"
#include "coordinator/store_seal.h"

namespace atl {

class Journal {
 public:
  Journal(EtcdClient* client, Leadership* leadership, const std::string& prefix);

  // Reads the totals, and carries out what was left to do. FailedPrecondition: written by a newer
  // Atoll. DataLoss: damaged.
  absl::StatusOr<StoreTotals> Recover();

  // One step. REQUIRES: Recover succeeded, and no Commit failed; no key occurs twice.
  absl::Status Commit(EtcdOperations operations, const StoreTotals& totals);

  // The state at `revision`: whether it is between two steps, and the totals then.
  struct Snapshot {
    int64_t revision = 0;
    bool whole = false;
    StoreTotals totals;
  };
  static absl::StatusOr<Snapshot> Look(EtcdClient* client, const std::string& prefix,
                                       const EtcdClient::GoOn& go_on);

 private:
  // One transaction. `totals`: the new ones' bytes, written with it; empty: they stay.
  absl::Status Transact(const EtcdOperations& operations, const std::string& totals);
  absl::Status CarryOut(const StoreTotals& totals, int batches);

  EtcdClient* const client_;
  Leadership* const leadership_;
  const std::string totals_key_, staged_;
  int64_t totals_revision_ = 0;  // 0: there are none yet
};

}  // namespace atl

#endif  // ATOLL_COORDINATOR_ETCD_JOURNAL_H_
