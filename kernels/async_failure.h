// A failure that one thread detects and that must reach another one, which waits for a stream.

#ifndef ATOLL_KERNELS_ASYNC_FAILURE_H_
#define ATOLL_KERNELS_ASYNC_FAILURE_H_

#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "common/status.h"

namespace atl {

// Thread-safe. The first failure stays.
class AsyncFailure {
 public:
  // Keeps the first failure; returns whether this was it.
  bool Keep(absl::Status status) {
    std::lock_guard lock(mutex_);
    if (!status_.ok()) return false;
    status_ = std::move(status);
    return true;
  }
  absl::Status status() const {
    std::lock_guard lock(mutex_);
    return status_;
  }

 private:
  mutable std::mutex mutex_;
  absl::Status status_;
};

// A backend whose streams can be left waiting by what fails elsewhere: a communicator.
class ReportsFailures {
 public:
  virtual ~ReportsFailures() = default;
  // Synchronize will report this source's failure.
  virtual void AddFailureSource(std::shared_ptr<AsyncFailure> source) = 0;
};

// Whose failures the streams of one backend must report. Used by one thread at a time.
class FailureSources {
 public:
  void Add(std::shared_ptr<AsyncFailure> source) { sources_.push_back({std::move(source), false}); }
  // The first failure of a source that is in use elsewhere, or was destroyed before it was read.
  absl::Status First() {
    absl::Status first;
    std::erase_if(sources_, [&](Source& source) {
      const bool released = source.failure.use_count() == 1;
      const absl::Status status = source.failure->status();
      if (first.ok() && !(released && source.reported)) first = status;
      source.reported = !status.ok();
      return released;
    });
    return first;
  }

 private:
  struct Source {
    std::shared_ptr<AsyncFailure> failure;
    bool reported;
  };
  std::vector<Source> sources_;
};

}  // namespace atl

#endif  // ATOLL_KERNELS_ASYNC_FAILURE_H_
