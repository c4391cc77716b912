// One reason why everything stops, for the threads that work on one plan.

#ifndef ATOLL_WORKER_PIPELINE_INTERRUPT_H_
#define ATOLL_WORKER_PIPELINE_INTERRUPT_H_

#include <functional>
#include <mutex>
#include <string>
#include <vector>

#include "common/status.h"

namespace atl::worker {

// Any number of threads.
class Interrupt {
 public:
  // The first status stays. Runs what has been added, now and later, with its message.
  void Raise(const absl::Status& status) {
    const std::lock_guard lock(mutex_);
    if (!status_.ok()) return;
    status_ = status;
    for (const auto& stop : stops_) stop(std::string(status.message()));
  }
  // `stop` must not call back, and is kept until Clear.
  void OnRaise(std::function<void(const std::string&)> stop) {
    const std::lock_guard lock(mutex_);
    if (!status_.ok()) stop(std::string(status_.message()));
    stops_.push_back(std::move(stop));
  }
  void Clear() {
    const std::lock_guard lock(mutex_);
    status_ = absl::OkStatus();
    stops_.clear();
  }
  absl::Status status() const {
    const std::lock_guard lock(mutex_);
    return status_;
  }

 private:
  mutable std::mutex mutex_;
  absl::Status status_;                                         // guarded by mutex_
  std::vector<std::function<void(const std::string&)>> stops_;  // guarded by mutex_
};

}  // namespace atl::worker

#endif  // ATOLL_WORKER_PIPELINE_INTERRUPT_H_
