// The coordinator's durable state: records under keys, and the log, in one SQLite file of a state
// directory. Write-ahead log and synchronous=FULL: what Apply has returned OK for survives a power
// cut.
//
// One process at a time owns a state directory (a lock file says so). Files that are not ours,
// are damaged or were written by a newer Atoll are refused and left as they are; store_seal.h says
// how damage is found. Not thread-safe.

#ifndef ATOLL_COORDINATOR_STORE_H_
#define ATOLL_COORDINATOR_STORE_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "coordinator/core/records.h"

namespace atl {

inline constexpr int kStoreSchemaVersion = 2;
inline constexpr int64_t kLogLinesKept = 100'000;

struct LogEntry {
  EventRecord event;
  int64_t unix_time_ms = 0;
};

// Which lines of the log.
struct LogQuery {
  JobId job;                   // empty: of all jobs, and the cluster's own
  int64_t after_sequence = 0;  // only newer ones
  int64_t since_unix_ms = 0;
  Severity severity = Severity::kInfo;  // at least
  std::string contains;                 // in any case of ASCII letters; empty: any text
};

class Store {
 public:
  // Makes the directory (not its parents) and the file if they are missing. Reads everything:
  // DataLoss, naming the file, the row and the remedy, where any byte differs from what was
  // written, or changes that had been made are missing. A damaged line of the log is only warned
  // of. `max_pages` limits the file (0: only the disk does); tests fill it.
  static absl::StatusOr<std::unique_ptr<Store>> Open(const std::string& directory,
                                                     int64_t max_pages = 0);
  ~Store();
  Store(const Store&) = delete;
  Store& operator=(const Store&) = delete;

  // Number of the newest change: grows with every Apply that writes anything, over restarts too.
  int64_t sequence() const;
  // Of the database.
  const std::string& path() const;

  // Everything but the log, in the order of keys. DataLoss, naming the key, if a record is damaged.
  absl::StatusOr<std::vector<StoreRecord>> ReadAll();

  // Applies all writes, in order, in one transaction: durable when it returns OK, and nothing of it
  // happened otherwise. EventRecords go to the log with `unix_time_ms`. ResourceExhausted: the disk
  // is full.
  absl::Status Apply(const std::vector<StoreWrite>& writes, int64_t unix_time_ms);

  // Such lines, oldest first, at most `limit`: fewer than that only if there are no more.
  absl::StatusOr<std::vector<LogEntry>> ReadLog(const LogQuery& query, int64_t limit);
  // The `after_sequence` with which the query yields the newest `count` of its lines.
  absl::StatusOr<int64_t> TailOfLog(const LogQuery& query, int64_t count);

 private:
  class Impl;
  explicit Store(std::unique_ptr<Impl> impl);

  std::unique_ptr<Impl> impl_;
};

}  // namespace atl

#endif  // ATOLL_COORDINATOR_STORE_H_
