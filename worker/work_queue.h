// A thread that does one thing after the other.

#ifndef ATOLL_WORKER_WORK_QUEUE_H_
#define ATOLL_WORKER_WORK_QUEUE_H_

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <utility>

#include "common/time.h"

namespace atl::worker {

// Thread-safe.
class WorkQueue {
 public:
  WorkQueue() : thread_([this] { Run(); }) {}
  ~WorkQueue() { Stop(); }
  WorkQueue(const WorkQueue&) = delete;
  WorkQueue& operator=(const WorkQueue&) = delete;

  // Waits for what is under way; what is behind it is dropped, and nothing more is done.
  void Stop() {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
      queue_.clear();
      changed_.notify_all();
    }
    if (thread_.joinable()) thread_.join();
  }

  // False: there is too much already, or it has stopped.
  bool Add(std::function<void()> work) {
    const std::lock_guard lock(mutex_);
    if (stopping_ || queue_.size() >= kQueueMax) return false;
    queue_.push_back(std::move(work));
    changed_.notify_all();
    return true;
  }
  // Waits until all of it is done.
  void Await() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return queue_.empty() && !busy_; });
  }
  // For so long at most; false: it is not.
  bool AwaitIdle(Duration at_most) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, at_most, [this] { return queue_.empty() && !busy_; });
  }

 private:
  static constexpr size_t kQueueMax = 1024;

  void Run() {
    std::unique_lock lock(mutex_);
    for (;;) {
      changed_.wait(lock, [this] { return stopping_ || !queue_.empty(); });
      if (stopping_) return;
      const std::function<void()> work = std::move(queue_.front());
      queue_.pop_front();
      busy_ = true;
      lock.unlock();
      work();
      lock.lock();
      busy_ = false;
      changed_.notify_all();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> queue_;  // guarded by mutex_
  bool busy_ = false;                        // guarded by mutex_
  bool stopping_ = false;                    // guarded by mutex_
  std::thread thread_;
};

}  // namespace atl::worker

#endif  // ATOLL_WORKER_WORK_QUEUE_H_
