#include "worker/state/keeper.h"

#include <utility>

namespace atl::worker {

Keeper::Keeper(Work work) : work_(std::move(work)), thread_([this] { Run(); }) {}

Keeper::~Keeper() {
  Cancel();
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    changed_.notify_all();
  }
  thread_.join();
}

void Keeper::Prepare(KeeperTask task, Done done) {
  const std::lock_guard lock(mutex_);
  tasks_.clear();
  tasks_.push_back({std::move(task), std::move(done), next_++});
}

void Keeper::GoOn(int64_t save) {
  const std::lock_guard lock(mutex_);
  for (Task& task : tasks_) task.go_on = task.go_on || task.task.save == save;
  changed_.notify_all();
}

void Keeper::Cancel() {
  const std::lock_guard lock(mutex_);
  tasks_.clear();
  cancelled_ = next_;
}

void Keeper::Stop() {
  Cancel();
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return !working_; });
}

bool Keeper::IsCancelled(int64_t number) {
  const std::lock_guard lock(mutex_);
  return number < cancelled_;
}

void Keeper::Run() {
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
