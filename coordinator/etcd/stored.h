// Decodes what the coordinator stores in etcd, from etcd's answers: who leads, and the log of steps
// that makes the state. Pure.

#ifndef ATOLL_COORDINATOR_ETCD_STORED_H_
#define ATOLL_COORDINATOR_ETCD_STORED_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "coordinator/etcd/api.pb.h"
#include "coordinator/etcd/stored.pb.h"

namespace atl {

inline constexpr int kEtcdSchemaVersion = 3;

// Reads the answer to a request for `key`. Nothing: etcd has no such key. DataLoss: it is damaged.
absl::StatusOr<std::optional<etcd::Leader>> LeaderIn(const etcdserverpb::RangeResponse& answer,
                                                     const std::string& key);

// Reads the answer to the transaction that takes `key` for a lease where no process has it.
struct TakenKey {
  int64_t create_revision = 0;  // of our key; 0: another process has it
  etcd::Leader leader;          // who
};
absl::StatusOr<TakenKey> TakenIn(const etcdserverpb::TxnResponse& answer, const std::string& key,
                                 const etcd::Leader& self, int64_t lease);

// The state that the entries of a log make, which follow each other without a gap from number 1 or
// a snapshot on. Checksums chain them: a missing, foreign or older entry is noticed.
class LoggedState {
 public:
  // Takes the next entry. FailedPrecondition: a newer Atoll's. DataLoss: it is damaged, or one is
  // missing before it.
  absl::Status Add(int64_t number, const std::string& bytes);
  // Makes a step, and returns its entries, to be stored under the numbers from next() on, as that
  // was before.
  std::vector<std::string> Append(const etcd::Step& step) { return Append(step, false); }
  // Returns entries of all that there is.
  std::vector<std::string> AppendSnapshot();

  const std::map<std::string, std::string>& values() const { return values_; }
  int64_t sequence() const { return sequence_; }  // steps so far
  // The number of the next entry. Those that are stored from there on are of a step whose end never
  // was.
  int64_t next() const { return next_; }
  // A snapshot would be much smaller than the log.
  bool is_long() const { return log_bytes_ > 2 * snapshot_bytes_ + kLogBytesMin; }

 private:
  static constexpr int64_t kLogBytesMin = int64_t{4} << 20;
  // The newest entry, and its step as far as it has come.
  struct Tail {
    int64_t next = 1;
    uint64_t chain = 0;  // the entry's checksum
    int32_t parts_left = 0;
    std::string data = {};
  };

  std::vector<std::string> Append(const etcd::Step& step, bool snapshot);

  std::map<std::string, std::string> values_;
  int64_t sequence_ = 0, next_ = 1;
  uint64_t chain_ = 0;  // checksum of the newest step's last entry
  int64_t log_bytes_ = 0, snapshot_bytes_ = 0;
  Tail tail_;
};

}  // namespace atl

#endif  // ATOLL_COORDINATOR_ETCD_STORED_H_
