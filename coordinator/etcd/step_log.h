// A state in etcd as a log of steps, with snapshots. Each entry is a transaction that compares that
// this process leads and that no entry has its number: a step is stored once, however often it is
// sent, and never by one that does not lead any more. etcd takes 1.5 MB in a request: a longer step
// is several entries, and counts with the last one. A snapshot is a step, too; its last entry
// erases those before it.

#ifndef ATOLL_COORDINATOR_ETCD_STEP_LOG_H_
#define ATOLL_COORDINATOR_ETCD_STEP_LOG_H_

#include <string>

#include "coordinator/etcd/leadership.h"
#include "coordinator/etcd/stored.h"

namespace atl {

// Not thread-safe.
class StepLog {
 public:
  // Entries are PREFIX/step/NUMBER.
  StepLog(EtcdClient* client, Leadership* leadership, const std::string& prefix);

  // Reads the whole, as of one revision of etcd. DataLoss, FailedPrecondition: as LoggedState says.
  // Any thread.
  static absl::StatusOr<LoggedState> Read(EtcdClient* client, const std::string& prefix,
                                          const EtcdClient::GoOn& go_on);
  // Reads it, and erases what was left of a step.
  absl::Status Open(const EtcdClient::GoOn& go_on);

  const LoggedState& state() const { return state_; }

  // Durable when OK. REQUIRES: Open succeeded. After an error every Commit fails: what is stored is
  // not known.
  absl::Status Commit(const etcd::Step& step);

 private:
  std::string MakeKey(int64_t number) const;
  absl::Status Store(int64_t first, const std::vector<std::string>& entries, bool snapshot);
  // `request`: compares and changes further keys. `key`, which it puts: it is carried out once.
  absl::Status Transact(etcdserverpb::TxnRequest request, const std::string& key);

  EtcdClient* const client_;
  Leadership* const leadership_;
  const std::string prefix_;
  LoggedState state_;
  absl::Status failure_;
};

}  // namespace atl

#endif  // ATOLL_COORDINATOR_ETCD_STEP_LOG_H_
