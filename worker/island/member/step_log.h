// A log of what has happened to the state of an island since its saves, as one of its members has
// seen it (worker/state/replay_log.h). Thread-safe.

#ifndef ATOLL_WORKER_ISLAND_MEMBER_STEP_LOG_H_
#define ATOLL_WORKER_ISLAND_MEMBER_STEP_LOG_H_

#include <cstdint>
#include <functional>
#include <limits>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "proto/group.plain.h"
#include "worker/state/replay_log.h"

namespace atl::worker {

class StepLog {
 public:
  // The newest step, which may still be lost.
  void Begin(const StepCall& step) {
    const std::lock_guard lock(mutex_);
    stepping_ = LoggedStep{0, step.ranges, step.learning_rate};
    number_ = step.number;
  }
  // It counts. Another number is ignored: that step is in the log, or was begun elsewhere.
  void Taken(int64_t number, int64_t optimizer_step, bool skipped,
             std::optional<double> loss_times_tokens) {
    const std::lock_guard lock(mutex_);
    if (!stepping_ || number_ != number) return;
    LoggedStep step = *std::exchange(stepping_, std::nullopt);
    step.optimizer_step = optimizer_step;
    // A replay decides as was decided then.
    step.norm_limit = skipped ? std::numeric_limits<double>::min() : 0;
    step.loss_times_tokens = loss_times_tokens;
    log_.Stepped(std::move(step));
  }
  void Change(const std::function<void(ReplayLog&)>& change) {
    const std::lock_guard lock(mutex_);
    change(log_);
  }

  std::optional<ReplayLog::Changes> Since(int64_t save) const {
    const std::lock_guard lock(mutex_);
    return log_.Since(save);
  }
  // The save that the state of now is, with nothing since.
  std::optional<int64_t> PresentSave() const {
    const std::lock_guard lock(mutex_);
    const std::optional<int64_t> save = log_.newest_save();
    const std::optional<ReplayLog::Changes> since = save ? log_.Since(*save) : std::nullopt;
    return since && since->all && since->list.empty() ? save : std::nullopt;
  }

 private:
  mutable std::mutex mutex_;
  ReplayLog log_;                       // guarded by mutex_
  std::optional<LoggedStep> stepping_;  // guarded by mutex_
  int64_t number_ = 0;                  // of stepping_; guarded by mutex_
};

}  // namespace atl::worker

#endif  // ATOLL_WORKER_ISLAND_MEMBER_STEP_LOG_H_
