// A single-threaded loop that owns a pure core: other threads post events, the loop's thread steps
// the core and carries out its actions.
//
//   EventLoop<Event> loop(4096);
//   link.OnMessage([&](Message m) { loop.Post(std::move(m)); });   // any thread
//   loop.Run([&](Instant now, std::optional<Event> event) {        // this thread
//     Actions actions = event ? core.Step(now, *event) : core.Step(now, Tick{});
//     ...
//     return actions.next_deadline;
//   });
//
// The clock is read once per turn; all events of a turn share its Instant. The queue is bounded:
// Post waits while it is full (backpressure). A thread that the step may wait for, because both
// take a lock or because the step ends what the thread does, must not wait for the step in its
// turn: it answers with PostAnswer.

#ifndef ATOLL_COMMON_EVENT_LOOP_H_
#define ATOLL_COMMON_EVENT_LOOP_H_

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "common/check.h"
#include "common/time.h"

namespace atl {

// The steady clock as an Instant.
inline Instant SteadyNow() {
  return Instant(
      std::chrono::duration_cast<Duration>(std::chrono::steady_clock::now().time_since_epoch()));
}

// Converts back, for waits of the standard library.
inline std::chrono::steady_clock::time_point ToSteady(Instant instant) {
  return std::chrono::steady_clock::time_point(instant.time_since_epoch());
}

template <class Event>
class EventLoop {
 public:
  explicit EventLoop(size_t max_queued) : max_queued_(max_queued) { ATOLL_CHECK(max_queued > 0); }

  // Waits for room. False, and the event is lost, once the loop stops. Thread-safe.
  // REQUIRES: not called from within `step`, where nothing would make room.
  bool Post(Event event) {
    std::unique_lock lock(mutex_);
    ATOLL_CHECK(queue_.size() < max_queued_ || thread_ != std::this_thread::get_id(),
                "an event loop waits for itself");
    room_.wait(lock, [&] { return stopped_ || queue_.size() < max_queued_; });
    return PushLocked(std::move(event));
  }

  // Never waits. False when the queue is full or the loop stops. Thread-safe.
  bool TryPost(Event event) {
    std::unique_lock lock(mutex_);
    if (queue_.size() >= max_queued_) return false;
    return PushLocked(std::move(event));
  }

  // Never waits, and is never refused for want of room: for answers to what the step has ordered,
  // one each, so that the orders bound them. False, and the event is lost, once the loop stops.
  // Thread-safe, `step` too.
  bool PostAnswer(Event event) {
    const std::lock_guard lock(mutex_);
    return PushLocked(std::move(event));
  }

  // Events that step has yet to take. Thread-safe.
  size_t queued() const {
    const std::lock_guard lock(mutex_);
    return queue_.size() + in_batch_;
  }

  // Run returns after the event under way; what is queued is dropped. Any thread, `step` too.
  void Stop() {
    std::deque<Event> dropped;  // destroyed after the lock: events' destructors may do much
    const std::lock_guard lock(mutex_);
    stopped_ = true;
    dropped.swap(queue_);
    filled_.notify_all();
    room_.notify_all();
  }

  // Calls step(now, event) for every event in the order of posting, and step(now, nullopt) at the
  // deadline that step returned last, until Stop. First of all it calls step(now, nullopt). To be
  // called once.
  template <class Step>
  void Run(Step&& step) {
    {
      const std::lock_guard lock(mutex_);
      thread_ = std::this_thread::get_id();
    }
    Instant deadline = step(SteadyNow(), std::optional<Event>());
    std::deque<Event> batch;
    while (TakeBatch(deadline, &batch)) {
      const Instant now = SteadyNow();
      for (Event& event : batch) {
        --in_batch_;
        deadline = step(now, std::optional<Event>(std::move(event)));
        if (stopped()) return;
      }
      batch.clear();
      if (deadline <= now) deadline = step(now, std::optional<Event>());
    }
  }

 private:
  bool PushLocked(Event event) {
    if (stopped_) return false;
    queue_.push_back(std::move(event));
    filled_.notify_one();
    return true;
  }

  bool stopped() {
    const std::lock_guard lock(mutex_);
    return stopped_;
  }

  // Waits for events or the deadline. False once the loop stops.
  bool TakeBatch(Instant deadline, std::deque<Event>* batch) {
    std::unique_lock lock(mutex_);
    const auto ready = [&] { return stopped_ || !queue_.empty(); };
    if (deadline == kNever) {
      filled_.wait(lock, ready);
    } else {
      // A far deadline would overflow the steady clock's type.
      const Duration wait = std::min<Duration>(deadline - SteadyNow(), std::chrono::hours(1));
      filled_.wait_for(lock, std::max(wait, Duration(0)), ready);
    }
    batch->swap(queue_);
    in_batch_ = batch->size();
    room_.notify_all();
    return !stopped_;
  }

  const size_t max_queued_;
  mutable std::mutex mutex_;
  std::condition_variable filled_, room_;
  std::deque<Event> queue_;          // guarded by mutex_
  bool stopped_ = false;             // guarded by mutex_
  std::thread::id thread_;           // of Run; guarded by mutex_
  std::atomic<size_t> in_batch_{0};  // taken from queue_, not stepped yet
};

}  // namespace atl

#endif  // ATOLL_COMMON_EVENT_LOOP_H_
