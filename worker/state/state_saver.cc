#include "worker/state/state_saver.h"

#include <memory>

namespace atl::worker {

void StateSaver::Prepare(SaveTask task, Done done) {
  const std::lock_guard lock(mutex_);
  prepared_ = {std::move(task), std::move(done), next_++};
}

void StateSaver::GoOn(int64_t save) {
  const std::lock_guard lock(mutex_);
  if (!prepared_ || prepared_->task.save != save) return;
  thread_.Add([this, task = std::make_shared<const Task>(*std::move(prepared_))] { Do(*task); });
  prepared_.reset();
}

void StateSaver::Cancel() {
  const std::lock_guard lock(mutex_);
  prepared_.reset();
  cancelled_ = next_;
}

void StateSaver::Stop() {
  Cancel();
  thread_.Await();
}

bool StateSaver::IsCancelled(int64_t number) {
  const std::lock_guard lock(mutex_);
  return number < cancelled_;
}

void StateSaver::Do(const Task& task) {
  {
    const std::lock_guard lock(mutex_);
    if (task.number < cancelled_ || task.number + 1 < next_) return;  // replaced before it began
  }
  const absl::Status done = work_(task.task, [&] { return IsCancelled(task.number); });
  if (!IsCancelled(task.number)) task.done(task.task.save, done);
}

}  // namespace atl::worker
