// Requests of many threads that end in one slow write: while one thread writes, others' requests
// collect, and the first of their threads writes all of them next.

#ifndef ATOLL_COMMON_GROUP_COMMIT_H_
#define ATOLL_COMMON_GROUP_COMMIT_H_

#include <condition_variable>
#include <functional>
#include <mutex>
#include <utility>
#include <vector>

#include "common/status.h"

namespace atl {

template <class Request>
class GroupCommit {
 public:
  // Called by one thread at a time, with requests in the order in which they came.
  using Write = std::function<absl::Status(const std::vector<Request*>&)>;
  explicit GroupCommit(Write write) : write_(std::move(write)) {}

  // Returns what the write of this request returned. Any thread; waits for at most two writes.
  absl::Status Do(Request request) {
    Waiting own{std::move(request)};
    std::unique_lock lock(mutex_);
    waiting_.push_back(&own);
    changed_.wait(lock, [&] { return own.is_done || !is_writing_; });
    if (own.is_done) return own.outcome;
    is_writing_ = true;
    const std::vector<Waiting*> all = std::exchange(waiting_, {});
    lock.unlock();
    std::vector<Request*> requests;
    for (Waiting* each : all) requests.push_back(&each->request);
    const absl::Status outcome = write_(requests);
    lock.lock();
    is_writing_ = false;
    for (Waiting* each : all) each->is_done = true, each->outcome = outcome;
    lock.unlock();
    changed_.notify_all();
    return outcome;
  }

  // Requests that came since the write under way began.
  size_t waiting() const {
    const std::lock_guard lock(mutex_);
    return waiting_.size();
  }

 private:
  struct Waiting {
    Request request;
    bool is_done = false;
    absl::Status outcome;
  };

  const Write write_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Waiting*> waiting_;
  bool is_writing_ = false;
};

}  // namespace atl

#endif  // ATOLL_COMMON_GROUP_COMMIT_H_
