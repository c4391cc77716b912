// Proves that a store is whole: a checksum in every row, one row of totals over all records, and
// next to the database a file with the number of the newest change. SQLite reads a damaged
// write-ahead log as if what follows had never been written; the number shows that it was.

#ifndef ATOLL_COORDINATOR_STORE_SEAL_H_
#define ATOLL_COORDINATOR_STORE_SEAL_H_

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace atl {

// Over all rows of the table `records`.
struct StoreTotals {
  int64_t sequence = 0;  // changes of the store so far
  int64_t records = 0;
  uint64_t digest = 0;  // sum of the rows' checksums

  bool operator==(const StoreTotals&) const = default;
};

uint64_t ComputeChecksum(const StoreTotals& totals);
// Returns the checksum of a row of `records`.
uint64_t ComputeRecordChecksum(absl::string_view key, absl::string_view value);
// Returns the checksum of a row of `log`.
uint64_t ComputeLineChecksum(int64_t sequence, int64_t unix_time_ms, absl::string_view job,
                             int64_t severity, absl::string_view text);

// The number of the newest change, in a file. It is written after the change is durable and is not
// synced: after a power cut it may be older than the store, but never newer.
class SequenceFile {
 public:
  SequenceFile() = default;
  ~SequenceFile();
  SequenceFile(const SequenceFile&) = delete;
  SequenceFile& operator=(const SequenceFile&) = delete;

  absl::Status Open(const std::string& path);
  // Nothing: it was never written. DataLoss: it is damaged.
  absl::StatusOr<std::optional<int64_t>> Read() const;
  absl::Status Write(int64_t sequence);

 private:
  std::string path_;
  int fd_ = -1;
};

}  // namespace atl

#endif  // ATOLL_COORDINATOR_STORE_SEAL_H_
