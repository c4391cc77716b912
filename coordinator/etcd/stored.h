// Decodes what the coordinator stores in etcd besides records (values.h), from etcd's answers: who
// leads, totals, batches of operations, lines of the log. Pure.

#ifndef ATOLL_COORDINATOR_ETCD_STORED_H_
#define ATOLL_COORDINATOR_ETCD_STORED_H_

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "coordinator/etcd/values.h"
#include "coordinator/etcd/values.pb.h"
#include "coordinator/store.h"
#include "coordinator/store_seal.h"

namespace atl {

inline constexpr int kEtcdSchemaVersion = 1;

// ---- Of the answer to a request for `key`. Nothing: etcd has no such key. DataLoss: it is
// damaged.

absl::StatusOr<std::optional<etcd::Leader>> LeaderIn(const etcdserverpb::RangeResponse& answer,
                                                     const std::string& key);

struct StoredTotals {
  StoreTotals totals;
  int staged_batches = 0;  // to be carried out, from 0 on
};
// FailedPrecondition: written by a newer Atoll.
absl::StatusOr<std::optional<StoredTotals>> TotalsIn(const etcdserverpb::RangeResponse& answer,
                                                     const std::string& key);
std::string EncodeTotals(const StoreTotals& totals, int staged_batches);

// DataLoss also where there is none.
absl::StatusOr<EtcdOperations> BatchIn(const etcdserverpb::RangeResponse& answer,
                                       const std::string& key);

// ---- Of the answer to the transaction that takes `key` for a lease where no process has it.

struct TakenKey {
  int64_t create_revision = 0;  // of our key; 0: another process has it
  etcd::Leader leader;          // who
};
absl::StatusOr<TakenKey> TakenIn(const etcdserverpb::TxnResponse& answer, const std::string& key,
                                 const etcd::Leader& self, int64_t lease);

// ---- Lines of the log: a value's bytes.

std::string EncodeLines(const std::vector<LogEntry>& lines);
// Decodes the lines that can be read; `damaged` counts the others, and those that fail their
// checksum.
std::vector<LogEntry> DecodeLines(const std::string& bytes, int64_t* damaged);

}  // namespace atl

#endif  // ATOLL_COORDINATOR_ETCD_STORED_H_
