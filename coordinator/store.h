// The coordinator's durable state: records under keys, and the log. Two stores keep it: one SQLite
// file of a state directory (store_sqlite.h), or etcd, which outlives the coordinator's machine
// (etcd/store_etcd.h). Not thread-safe.

#ifndef ATOLL_COORDINATOR_STORE_H_
#define ATOLL_COORDINATOR_STORE_H_

#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "coordinator/core/records.h"

namespace atl {

inline constexpr int64_t kLogLinesKept = 100'000;
inline constexpr int64_t kMaxRecordBytes = int64_t{256} << 20;

// The severity that a store has as a number; one of a later version is kInfo.
inline Severity SeverityFromStored(int64_t number) {
  const bool is_known = number >= static_cast<int64_t>(Severity::kDebug) &&
                        number <= static_cast<int64_t>(Severity::kError);
  return is_known ? static_cast<Severity>(number) : Severity::kInfo;
}

struct LogEntry {
  EventRecord event;
  int64_t unix_time_ms = 0;
};

// All that a store has.
struct StoreContents {
  std::vector<StoreRecord> records;
  std::vector<LogEntry> lines;
};

// Selects lines of the log.
struct LogQuery {
  JobId job;                   // empty: of all jobs, and the cluster's own
  int64_t after_sequence = 0;  // only newer ones
  int64_t since_unix_ms = 0;
  Severity severity = Severity::kInfo;  // at least
  std::string contains;                 // in any case of ASCII letters; empty: any text
};

class SharedValue;

class Store {
 public:
  Store() = default;
  virtual ~Store() = default;
  Store(const Store&) = delete;
  Store& operator=(const Store&) = delete;

  // Number of the newest change: grows with every Apply that writes anything, over restarts too.
  virtual int64_t sequence() const = 0;
  // Returns where it is, for messages.
  virtual const std::string& name() const = 0;

  // Everything but the log, in the order of keys. DataLoss, naming the key, if a record is damaged.
  virtual absl::StatusOr<std::vector<StoreRecord>> ReadAll() = 0;

  // Applies all writes, in order, in one transaction: durable when it returns OK, and all of it or
  // nothing happened otherwise; which of both is certain only for ResourceExhausted: nothing, for
  // lack of space. FailedPrecondition: another process owns the store now, and nothing happened.
  // EventRecords go to the log with `unix_time_ms`.
  virtual absl::Status Apply(const std::vector<StoreWrite>& writes, int64_t unix_time_ms) = 0;

  // The same with these contents. FailedPrecondition: the store has records.
  virtual absl::Status Fill(const StoreContents& contents) = 0;

  // Such lines, oldest first, at most `limit`: fewer than that only if there are no more.
  virtual absl::StatusOr<std::vector<LogEntry>> ReadLog(const LogQuery& query, int64_t limit) = 0;
  // The `after_sequence` with which the query yields the newest `count` of its lines.
  virtual absl::StatusOr<int64_t> FindLogTail(const LogQuery& query, int64_t count) = 0;

  // Copies everything, as it is between two changes, to the new file `to`, which RestoreStore
  // (store_backup.h) takes, and returns the number of the newest change. Its own thread is not held
  // up. On an error nothing is left at `to`. Any thread.
  virtual absl::StatusOr<int64_t> BackUp(const std::string& to) const = 0;

  // Returns where the registry of who may be in the cluster belongs; null: in the state folder, as
  // this store does. It is valid as long as the store, whose other calls may come from another
  // thread meanwhile.
  virtual SharedValue* registry() { return nullptr; }

  // Calls `on_lost`, at most once and on any thread, when this process ceases to own the store.
  // Once; ends with the store.
  virtual void WatchOwnership(std::function<void(const absl::Status&)> /*on_lost*/) {}
};

}  // namespace atl

#endif  // ATOLL_COORDINATOR_STORE_H_
