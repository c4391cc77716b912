#include "worker/state/keeper.h"

#include <utility>

namespace atl::worker {

Keeper::Keeper(UnitStore* store, Fetch fetch)
    : store_(store), fetch_(std::move(fetch)), thread_([this] { Run(); }) {}

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

bool Keeper::IsCancelled(const Task& task) {
  const std::lock_guard lock(mutex_);
  return task.number < cancelled_;
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
    Do(task);
  }
}

void Keeper::Do(const Task& task) {
  absl::Status status;
  for (const SaveOrder::Fetch& fetch : task.task.order.fetch) {
    if (IsCancelled(task)) return;
    absl::StatusOr<StoredUnit> unit = fetch_(task.task.save, fetch);
    status = unit.ok() ? store_->Put(task.task.save, *std::move(unit)) : unit.status();
    if (!status.ok()) break;
  }
  if (IsCancelled(task)) return;
  constexpr int32_t kMemory = 1 << static_cast<int>(Tier::kMemory);
  const int32_t whole = status.ok() ? task.task.tiers & kMemory : 0;
  task.done(task.task.save, whole, std::string(status.message()));
}

}  // namespace atl::worker
