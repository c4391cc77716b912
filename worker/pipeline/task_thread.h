// A thread that runs one task at a time.

#ifndef ATOLL_WORKER_PIPELINE_TASK_THREAD_H_
#define ATOLL_WORKER_PIPELINE_TASK_THREAD_H_

#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>
#include <utility>

#include "common/check.h"

namespace atl::worker {

class TaskThread {
 public:
  TaskThread() : thread_([this] { Work(); }) {}
  ~TaskThread() {
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
      changed_.notify_all();
    }
    thread_.join();
  }
  TaskThread(const TaskThread&) = delete;
  TaskThread& operator=(const TaskThread&) = delete;

  // REQUIRES: the task before has been waited for.
  void Start(std::function<void()> task) {
    const std::lock_guard lock(mutex_);
    ATOLL_CHECK(task_ == nullptr, "a task is under way");
    task_ = std::move(task);
    changed_.notify_all();
  }
  // Until the task, if any, is done. Tasks themselves are bounded.
  void Wait() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return task_ == nullptr; });
  }

 private:
  void Work() {
    std::unique_lock lock(mutex_);
    for (;;) {
      changed_.wait(lock, [this] { return stop_ || task_ != nullptr; });
      if (task_ == nullptr) return;
      lock.unlock();
      task_();
      lock.lock();
      task_ = nullptr;
      changed_.notify_all();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::function<void()> task_;  // guarded by mutex_
  bool stop_ = false;           // guarded by mutex_
  std::thread thread_;          // last: it uses the others
};

}  // namespace atl::worker

#endif  // ATOLL_WORKER_PIPELINE_TASK_THREAD_H_
