// Rebuilds a job's state from what a parameter server has on disk.

#ifndef ATOLL_PARAMSERVER_CORE_JOB_REPLAY_H_
#define ATOLL_PARAMSERVER_CORE_JOB_REPLAY_H_

#include <algorithm>
#include <limits>
#include <memory>
#include <string>

#include "paramserver/core/job_state.h"

namespace atl::ps {

// A job found on disk.
struct RecoveredJob {
  JobId job;
  std::string damage;               // not empty: why it cannot be served; the rest is unset then
  std::unique_ptr<JobState> state;  // all its staged pushes are durable
  LogSequence next_sequence = 1;
  Version snapshot_version = kNoVersion;  // kNoVersion: there is no snapshot
  LogSequence snapshot_replay_from = 1;
  bool snapshot_ended = false;
};

// Rebuilds a job from its newest good snapshot (null: none) and the log records from
// snapshot->replay_from on (from 1 without), in order.
class JobReplay {
 public:
  // Nothing from the first round above `limit` on is taken.
  JobReplay(JobId job, std::shared_ptr<const Snapshot> snapshot, ThreadPool* pool,
            Version limit = std::numeric_limits<Version>::max());

  // Records that the snapshot contains may be missing (damaged), but for the pushes staged in it.
  absl::Status Add(LogSequence sequence, const LogRecord& record);
  // The log goes on with this record.
  void EndsBefore(LogSequence next) {
    recovered_.next_sequence = std::max(recovered_.next_sequence, next);
  }
  // An error says what the records lack.
  absl::StatusOr<RecoveredJob> Finish() &&;
  // Returns the state as far as the log could be replayed; null: not even the snapshot could be
  // used.
  std::unique_ptr<JobState> State() && { return std::move(recovered_.state); }

 private:
  std::shared_ptr<const Snapshot> snapshot_;
  Version limit_;
  bool beyond_ = false;  // the limit
  absl::Status status_;
  RecoveredJob recovered_;
};

}  // namespace atl::ps

#endif  // ATOLL_PARAMSERVER_CORE_JOB_REPLAY_H_
