// Carries out a member's part of saves (asynchronous checkpoints), one at a time, on a thread of
// its own during the steps.

#ifndef ATOLL_WORKER_STATE_STATE_SAVER_H_
#define ATOLL_WORKER_STATE_STATE_SAVER_H_

#include <functional>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "common/object_store/object_store.h"
#include "worker/state/unit_store.h"
#include "worker/work_queue.h"

namespace atl::worker {

struct SaveTask : SaveCall {
  std::vector<StoredUnit> units = {};  // its own, as they were; those of memory are in the store
  std::vector<StoredResidual> residuals = {};  // likewise
};

class StateSaver {
 public:
  // Does it all, or returns why not; soon after it is cancelled. On the saver's thread.
  using Work = std::function<absl::Status(const SaveTask& task, const Cancelled& cancelled)>;
  // OK: all of a save is done. Likewise.
  using Done = std::function<void(int64_t save, const absl::Status& status)>;

  explicit StateSaver(Work work) : work_(std::move(work)) {}
  ~StateSaver() { Stop(); }
  StateSaver(const StateSaver&) = delete;
  StateSaver& operator=(const StateSaver&) = delete;

  // Replaces what has not begun; begins with GoOn. Thread-safe, and never waits.
  void Prepare(SaveTask task, Done done);
  void GoOn(int64_t save);
  // Makes what is under way end soon, and report nothing any more.
  void Cancel();
  // Cancel, and waits for that.
  void Stop();

 private:
  struct Task {
    SaveTask task;
    Done done;
    int64_t number = 0;
  };

  void Do(const Task& task);
  bool IsCancelled(int64_t number);

  const Work work_;
  std::mutex mutex_;
  std::optional<Task> prepared_;  // guarded by mutex_
  int64_t next_ = 0;              // guarded by mutex_
  int64_t cancelled_ = 0;         // guarded by mutex_; tasks before this number
  WorkQueue thread_;              // last: it uses the others
};

}  // namespace atl::worker

#endif  // ATOLL_WORKER_STATE_STATE_SAVER_H_
