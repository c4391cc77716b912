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

// What comes from other threads is kept apart.
class IslandEvents {
 public:
  void Post(Event event) {
    const std::lock_guard lock(mutex_);
    if (DeltaReady* ready = std::get_if<DeltaReady>(&event)) {
      ready_ = std::move(*ready);
    } else if (const PullDone* pulled = std::get_if<PullDone>(&event)) {
      pulled_ = *pulled;
    } else if (StateSaved* saved = std::get_if<StateSaved>(&event)) {
      saved_ = std::move(*saved);
    } else if (std::holds_alternative<Tick>(event)) {
      tick_ = Tick{};
    } else {
      last_ = std::move(event);
    }
    changed_.notify_all();
  }
  Event last() const {
    const std::lock_guard lock(mutex_);
    return last_;
  }
  bool pulled() const {
    const std::lock_guard lock(mutex_);
    return pulled_.has_value();
  }
  // These wait for it, and take it.
  DeltaReady AwaitReady() { return Await(&ready_); }
  PullDone AwaitPulled() { return Await(&pulled_); }
  StateSaved AwaitSaved() { return Await(&saved_); }
  void AwaitStagingEnds() { Await(&tick_); }  // that was cancelled

 private:
  template <typename T>
  T Await(std::optional<T>* event) {
    std::unique_lock lock(mutex_);
    const bool came =
        changed_.wait_for(lock, std::chrono::seconds(60), [event] { return event->has_value(); });
    ATOLL_CHECK(came, "what a test waits for has not come in 60 s");
    return *std::exchange(*event, std::nullopt);
  }

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  Event last_;                       // guarded by mutex_
  std::optional<DeltaReady> ready_;  // all guarded by mutex_
  std::optional<PullDone> pulled_;
  std::optional<StateSaved> saved_;
  std::optional<Tick> tick_;
};

}  // namespace atl::worker

#endif  // ATOLL_WORKER_RUNTIME_TESTING_ISLAND_EVENTS_H_
