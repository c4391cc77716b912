// Holds up whoever passes it while it is closed: for tests that decide what happens first.

#ifndef ATOLL_KERNELS_TESTING_GATE_H_
#define ATOLL_KERNELS_TESTING_GATE_H_

#include <condition_variable>
#include <mutex>

namespace atl::testing {

// Open at first. Thread-safe.
class Gate {
 public:
  void Close() {
    const std::lock_guard lock(mutex_);
    open_ = false;
  }
  void Open() {
    const std::lock_guard lock(mutex_);
    open_ = true;
    changed_.notify_all();
  }
  void Pass() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return open_; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool open_ = true;  // guarded by mutex_
};

}  // namespace atl::testing

#endif  // ATOLL_KERNELS_TESTING_GATE_H_
