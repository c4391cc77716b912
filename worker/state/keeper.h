// Carries out a member's part of saves, on a thread of its own: fetches copies of others' units,
// and writes its own to the tiers.

#ifndef ATOLL_WORKER_STATE_KEEPER_H_
#define ATOLL_WORKER_STATE_KEEPER_H_

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <string>
#include <thread>

#include "worker/state/unit_store.h"

namespace atl::worker {

struct KeeperTask {
  int64_t save = 0;
  SaveOrder order;
  int32_t tiers = 0;  // bit t: Tier t
};

class Keeper {
 public:
  // Gets these elements of a shard, as they were when the save was made, from the member that owns
  // them. Bounded.
  using Fetch =
      std::function<absl::StatusOr<StoredUnit>(int64_t save, const SaveOrder::Fetch& wanted)>;
  // Of a task: the tiers that have all of it, and what became of the others. On its thread.
  using Done = std::function<void(int64_t save, int32_t tiers, const std::string& trouble)>;

  Keeper(UnitStore* store, Fetch fetch);
  ~Keeper();  // waits for the fetch under way
  Keeper(const Keeper&) = delete;
  Keeper& operator=(const Keeper&) = delete;

  // In place of what has not begun; begins when GoOn says so. Thread-safe, and never waits.
  void Prepare(KeeperTask task, Done done);
  void GoOn(int64_t save);
  // What is under way ends after its unit, and says nothing any more.
  void Cancel();
  // Cancel, and waits for that.
  void Stop();

 private:
  struct Task {
    KeeperTask task;
    Done done;
    int64_t number = 0;
    bool go_on = false;
  };

  void Run();
  void Do(const Task& task);
  bool IsCancelled(const Task& task);

  UnitStore* const store_;
  const Fetch fetch_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Task> tasks_;  // guarded by mutex_; one at most
  int64_t next_ = 0;        // guarded by mutex_
  int64_t cancelled_ = 0;   // guarded by mutex_; tasks before this number
  bool working_ = false;    // guarded by mutex_
  bool stopping_ = false;   // guarded by mutex_
  std::thread thread_;      // last: it uses the others
};

}  // namespace atl::worker

#endif  // ATOLL_WORKER_STATE_KEEPER_H_
