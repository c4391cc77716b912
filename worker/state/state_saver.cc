#include "worker/state/state_saver.h"

#include <utility>

namespace atl::worker {

StateSaver::StateSaver(Work work) : work_(std::move(work)), thread_([this] { Run(); }) {}

StateSaver::~StateSaver() {
  Cancel();
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    changed_.notify_all();
  }
  thread_.join();
}

void StateSaver::Prepare(SaveTask task, Done done) {
  const std::lock_guard lock(mutex_);
  tasks_.clear();
  tasks_.push_back({std::move(task), std::move(done), next_++});
}

void StateSaver::GoOn(int64_t save) {
  const std::lock_guard lock(mutex_);
  for (Task& task : tasks_) task.go_on = task.go_on || task.task.save == save;
  changed_.notify_all();
}

void StateSaver::Cancel() {
  const std::lock_guard lock(mutex_);
  tasks_.clear();
  cancelled_ = next_;
}

void StateSaver::Stop() {
  Cancel();
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return !working_; });
}

bool StateSaver::IsCancelled(int64_t number) {
  const std::lock_guard lock(mutex_);
  return number < cancelled_;
}

void StateSaver::Run() {
  for (;;) {
    std::unique_lock lock(mutex_);
    working_ = false;
    changed_.notify_all();
    changed_.wait(lock, [this] { return stopping_ || (!tasks_.empty() && tasks_.front().go_on); });
    if (stopping_) return;
    const Task task = std::move(tasks_.front());
    tasks_.pop_front();
    working_ = true;
    lock.unlock();
    const absl::Status done = work_(task.task, [&] { return IsCancelled(task.number); });
    if (IsCancelled(task.number)) continue;
    task.done(task.task.save, done);
  }
}

}  // namespace atl::worker
