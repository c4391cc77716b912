// One job's log on the disk: segments, each a file "log-<sequence of its first record>".
//
//   segment = head, record, record, ...
//   head    = "ATOLLLOG", u32 format, u32 0, u64 first sequence, u64 checksum of these
//   record  = u32 magic, u32 type, u64 sequence, u64 synced, u64 field bytes, u64 payload bytes,
//             u64 checksum of fields, u64 checksum of payload, u64 checksum of these;
//             fields (codec.h); payload; zeros up to a multiple of 8
//
// `synced` is the newest record that was durable when this one was written. It distinguishes a torn
// tail from damage: after a crash anything may follow the last durable record, and is cut off; but
// where a later record states that a broken one had been durable, the disk has lost data, and that
// is an error. A segment is durable before the next one is made.

#ifndef ATOLL_PARAMSERVER_STORAGE_LOG_H_
#define ATOLL_PARAMSERVER_STORAGE_LOG_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/files.h"
#include "paramserver/core/records.h"

namespace atl::ps {

struct LogOptions {
  int64_t segment_bytes = int64_t{64} << 20;   // a new segment is begun beyond this
  int64_t rotate_bytes = int64_t{1} << 20;     // and beyond this at a truncation
  int64_t read_bytes_max = int64_t{16} << 30;  // of one segment
};

// The result of reading a log.
struct LogEnd {
  LogSequence next_sequence = 1;
  std::string cut;                          // not empty: what a crash left and was cut off
  std::string skipped;                      // not empty: damage that does not matter
  std::map<LogSequence, int64_t> segments;  // bytes by first record
};

// Reads the records from `from` on, in order, and cuts off a torn tail (on the disk too). Damaged
// ones up to `covered`, which a snapshot contains, are left out. An error names the file and the
// offset, or what `each` said.
absl::StatusOr<LogEnd> ReadLog(
    Files& files, const std::string& folder, LogSequence from, LogSequence covered,
    const LogOptions& options,
    const std::function<absl::Status(LogSequence, const LogRecord&)>& each);

// Appends to the log in `folder` that ends as ReadLog said, in a new segment. One thread.
class LogWriter {
 public:
  LogWriter(Files* files, std::string folder, const LogEnd& end, LogOptions options);

  // Writes the next record. Durable after Sync. Any error: call Rollback before the next Append.
  absl::Status Append(LogSequence sequence, const LogRecord& record);
  absl::Status Sync();
  // Forgets what was appended and not synced, on the disk too; Append then goes on with the record
  // after synced(). To be repeated until it is OK.
  absl::Status Rollback();
  LogSequence synced() const { return synced_; }

  // Removes segments that hold only records before `keep_from`. Never the newest, but a large one
  // gets a successor, so that a later call removes it.
  absl::Status Truncate(LogSequence keep_from);
  int64_t bytes() const;

 private:
  absl::Status BeginSegment();
  void EndSegment();  // the open one, which is durable

  Files* const files_;
  const std::string folder_;
  const LogOptions options_;
  std::map<LogSequence, int64_t> segments_;  // bytes of each but the open one
  LogSequence appended_, synced_;            // newest records
  std::unique_ptr<AppendFile> file_;         // null: the next record begins a segment
  LogSequence file_first_ = 0;
  int64_t synced_bytes_ = 0;  // of file_
};

}  // namespace atl::ps

#endif  // ATOLL_PARAMSERVER_STORAGE_LOG_H_
