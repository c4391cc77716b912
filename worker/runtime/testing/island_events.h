// What an island posts, for tests and benchmarks that run its commands themselves.

#ifndef ATOLL_WORKER_RUNTIME_TESTING_ISLAND_EVENTS_H_
#define ATOLL_WORKER_RUNTIME_TESTING_ISLAND_EVENTS_H_

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <utility>
#include <variant>

#include "common/check.h"
#include "worker/core/actions.h"

namespace atl::worker {

// DeltaReady, which comes from another thread, is kept apart.
class IslandEvents {
 public:
  void Post(Event event) {
    const std::lock_guard lock(mutex_);
    if (DeltaReady* ready = std::get_if<DeltaReady>(&event)) {
      ready_ = std::move(*ready);
      changed_.notify_all();
    } else {
      last_ = std::move(event);
    }
  }
  Event last() const {
    const std::lock_guard lock(mutex_);
    return last_;
  }
  // Waits for it, and takes it.
  DeltaReady AwaitReady() {
    std::unique_lock lock(mutex_);
    const bool came =
        changed_.wait_for(lock, std::chrono::seconds(60), [this] { return ready_.has_value(); });
    ATOLL_CHECK(came, "no DeltaReady has come in 60 s");
    return *std::exchange(ready_, std::nullopt);
  }

 private:
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  Event last_;                       // guarded by mutex_
  std::optional<DeltaReady> ready_;  // guarded by mutex_
};

}  // namespace atl::worker

#endif  // ATOLL_WORKER_RUNTIME_TESTING_ISLAND_EVENTS_H_
