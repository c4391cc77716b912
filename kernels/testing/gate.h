// Blocks every thread that passes it while it is closed: for tests that decide what happens first.

#ifndef ATOLL_KERNELS_TESTING_GATE_H_
#define ATOLL_KERNELS_TESTING_GATE_H_

#include <chrono>
#include <condition_variable>
#include <mutex>

#include "common/check.h"

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
    ++waiting_;
    changed_.notify_all();
    const bool opened = changed_.wait_for(lock, std::chrono::seconds(60), [this] { return open_; });
    ATOLL_CHECK(opened, "a test has left a gate closed for 60 s");
    --waiting_;
  }
  // Until it is closed and a thread waits to pass it.
  void AwaitStall() {
    std::unique_lock lock(mutex_);
    const bool held = changed_.wait_for(lock, std::chrono::seconds(60),
                                        [this] { return !open_ && waiting_ > 0; });
    ATOLL_CHECK(held, "no thread has come to a gate in 60 s");
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool open_ = true;  // guarded by mutex_, as all below
  int waiting_ = 0;
};

}  // namespace atl::testing

#endif  // ATOLL_KERNELS_TESTING_GATE_H_
