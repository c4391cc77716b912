// The thread that computes: it carries out the core's trainer commands one after the other.

#ifndef ATOLL_WORKER_RUNTIME_COMPUTE_THREAD_H_
#define ATOLL_WORKER_RUNTIME_COMPUTE_THREAD_H_

#include <condition_variable>
#include <deque>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <variant>

#include "common/check.h"
#include "worker/runtime/island.h"

namespace atl::worker {

class ComputeThread {
 public:
  // `island` is this thread's alone from now on, but for its shared buffers.
  explicit ComputeThread(Island* island) : island_(island), thread_([this] { Work(); }) {}
  // Waits for the command under way; those behind it are dropped.
  ~ComputeThread() {
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
      filled_.notify_one();
    }
    thread_.join();
  }
  ComputeThread(const ComputeThread&) = delete;
  ComputeThread& operator=(const ComputeThread&) = delete;

  // Never waits. The core has at most one command and one checkpoint outstanding, and releases.
  void Enqueue(Action command) {
    const std::lock_guard lock(mutex_);
    ATOLL_CHECK(queue_.size() < kQueueMax, "the core requests more than it waits for");
    queue_.push_back({std::move(command), std::nullopt});
    filled_.notify_one();
  }

  // The pull is complete; see Island::StagePulled.
  void Stage(const PullDone& pulled) {
    const std::lock_guard lock(mutex_);
    ATOLL_CHECK(queue_.size() < kQueueMax, "more pulls end than were begun");
    queue_.push_back({Staging{pulled, island_->StagingTicket()}, std::nullopt});
    filled_.notify_one();
  }

  // Commands that wait for the one under way.
  size_t queued() const {
    const std::lock_guard lock(mutex_);
    return queue_.size();
  }

  // Ends soon what was enqueued until now and works with several devices, begun or not.
  void Interrupt(const std::string& reason) {
    const std::lock_guard lock(mutex_);
    for (Queued& queued : queue_) queued.interrupted = reason;
    island_->Interrupt(reason);
  }

 private:
  struct Staging {
    PullDone pulled;
    int64_t ticket;
  };
  struct Queued {
    std::variant<Action, Staging> task;
    std::optional<std::string> interrupted;
  };

  static constexpr size_t kQueueMax = 256;

  void Work() {
    for (;;) {
      std::unique_lock lock(mutex_);
      filled_.wait(lock, [this] { return stop_ || !queue_.empty(); });
      if (stop_) return;
      const Queued next = std::move(queue_.front());
      queue_.pop_front();
      island_->ForgetInterrupts();  // under the lock: the next one concerns this command
      lock.unlock();
      if (const Staging* staging = std::get_if<Staging>(&next.task)) {
        island_->StagePulled(staging->pulled, staging->ticket);
        continue;
      }
      const Action& command = std::get<Action>(next.task);
      if (next.interrupted && island_->Refuse(command, *next.interrupted)) continue;
      island_->Run(command);
    }
  }

  Island* const island_;
  mutable std::mutex mutex_;
  std::condition_variable filled_;
  std::deque<Queued> queue_;  // guarded by mutex_
  bool stop_ = false;         // guarded by mutex_
  std::thread thread_;        // last: it uses the others
};

}  // namespace atl::worker

#endif  // ATOLL_WORKER_RUNTIME_COMPUTE_THREAD_H_
