// Work on a thread of its own, in parallel to the trainer's commands: its first part, until Done,
// uses what all commands but steps change, and they wait for it.

#ifndef ATOLL_WORKER_RUNTIME_SIDE_WORK_H_
#define ATOLL_WORKER_RUNTIME_SIDE_WORK_H_

#include <atomic>
#include <functional>
#include <thread>
#include <utility>

namespace atl::worker {

// Start and Join are for one thread at a time, the rest for any.
class SideWork {
 public:
  ~SideWork() {
    Cancel();
    Join();
  }

  // Waits for the work before.
  void Start(std::function<void()> work) {
    Join();
    going_ = true;
    thread_ = std::thread([this, work = std::move(work)] {
      work();
      Done();
    });
  }
  // Called by the work, when it needs nothing of others any more; implied by its end.
  void Done() {
    going_ = false;
    going_.notify_all();
  }

  bool going() const { return going_; }
  void Await() const { going_.wait(true); }
  void Join() {
    if (thread_.joinable()) thread_.join();
  }

  // What goes on ends soon, if it checks.
  void Cancel() { cancelled_ = true; }
  void Revive() {
    if (!going_) cancelled_ = false;  // what goes on stays cancelled
  }
  const std::atomic<bool>& cancelled() const { return cancelled_; }

 private:
  std::atomic<bool> going_ = false, cancelled_ = false;
  std::thread thread_;
};

}  // namespace atl::worker

#endif  // ATOLL_WORKER_RUNTIME_SIDE_WORK_H_
