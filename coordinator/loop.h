// The thread that owns the coordinator's core and store. Services hand it tasks; a task steps the
// core, and what the core decides is stored before any of it is sent.
//
// Tasks of members that wait in the queue together are stored in one transaction, and what they
// decide is sent after it: 1,000 connections that are lost at once cost a few syncs of a disk, not
// 1,000. What was decided before any other task is stored and sent when that task begins.

#ifndef ATOLL_COORDINATOR_LOOP_H_
#define ATOLL_COORDINATOR_LOOP_H_

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "common/event_loop.h"
#include "coordinator/core/core.h"
#include "coordinator/island_planner.h"
#include "coordinator/lateness.h"
#include "coordinator/observations.h"
#include "coordinator/recording/recorder.h"
#include "coordinator/store.h"
#include "coordinator/trace_request_table.h"

namespace atl {

class CoordinatorLoop {
 public:
  using Task = std::function<void(Instant now)>;

  // Takes the next epoch (durable before this returns) and recovers the core from the store. What
  // is remembered outside of the store goes to `state_dir`. `lost`: the cluster of a store that was
  // lost, for an empty one. `authority`: the cluster of the authority, which a new store takes and
  // every other one must have. Either may be empty.
  static absl::StatusOr<std::unique_ptr<CoordinatorLoop>> Open(std::unique_ptr<Store> store,
                                                               const std::string& state_dir,
                                                               const ClusterId& lost,
                                                               const ClusterId& authority,
                                                               CoordinatorOptions options);

  // Records what the core receives from now on (recording/recorder.h). An error: the folder cannot
  // be used. REQUIRES: before Run.
  absl::Status Record(const std::string& folder);

  // Where actions go. REQUIRES: set before Run; called on the loop's thread.
  std::function<void(const ToWorker&)> send_to_worker;
  std::function<void(const ToServer&)> send_to_server;
  // Called between tasks; returns when it is to be called again at the latest. `changed`: stored
  // state has changed since the last call.
  std::function<Instant(Instant now, bool changed)> between_tasks;

  // Runs tasks until Stop, or until the store fails or is another process's; says which.
  absl::Status Run();
  void Stop() { queue_.Stop(); }  // any thread

  // Hands a task over; false when there are too many or the loop ends, and the task is destroyed
  // unrun. Any thread; never waits.
  bool Post(Task task) { return Enqueue({std::move(task), /*gathers=*/false}); }
  // A task that steps the core with an event and looks at nothing.
  bool PostEvent(Task task) { return Enqueue({std::move(task), /*gathers=*/true}); }
  // Tasks that were handed over and have not run. Any thread.
  int64_t queued() const { return posted_ - run_; }

  // ---- The rest only from within a task. ----

  // Steps the core. What it decides is stored, then sent, by the end of the task or, of tasks of
  // PostEvent, soon after it.
  void Step(Instant now, const CoordinatorEvent& event);

  // Stores and sends what is pending if any of it is for this member. REQUIRED before a new
  // connection of it is used: its first message must not be one to the connection before.
  void CommitFor(const NodeId& member);

  // Steps with a client's request; `on_reply` is called before this returns, or not at all if the
  // store fails. `make` gets the request's id.
  void Request(Instant now, const std::function<CoordinatorEvent(int64_t)>& make,
               const std::function<void(const Reply&)>& on_reply);

  const CoordinatorCore& core() const { return core_; }
  Store& store() { return *store_; }
  const ProfileRegistry& measurements() const { return planner_.registry(); }
  IslandPlanner& planner() { return planner_; }
  TraceRequestTable& traces() { return traces_; }
  const Observations& observations() const { return *observations_; }

 private:
  CoordinatorLoop(std::unique_ptr<Store> store, CoordinatorOptions options, const EpochRecord& own);
  void SendToWorker(const NodeId& worker, Incarnation incarnation, ToWorkerMessage message);

  struct Queued {
    Task run;
    bool gathers = false;
    Instant posted_at = SteadyNow();
  };
  bool Enqueue(Queued task) {
    const bool posted = queue_.TryPost(std::move(task));
    if (posted) ++posted_;
    return posted;
  }
  Instant Turn(Instant now, std::optional<Queued> task);
  // Returns whether more tasks are to be run before what is pending is stored.
  bool MayGather() const;
  // Stores what is pending, then sends it. What cannot be stored is not sent.
  void Commit();

  // Sends the requests of the planner to workers; returns when to call again.
  Instant AdvancePlanner(Instant now);
  Instant AdvanceTraces(Instant now);  // likewise

  EventLoop<Queued> queue_;
  std::atomic<int64_t> posted_{0}, run_{0};
  std::unique_ptr<Store> store_;
  CoordinatorCore core_;
  std::unique_ptr<EventRecorder> recorder_;  // null: nothing is recorded
  Instant core_deadline_ = kNever;
  Instant wake_ = kNever;  // when the loop's next turn is due at the latest
  Lateness lateness_;
  bool changed_ = false;
  CoordinatorActions pending_;  // of steps that are not stored yet: writes, messages and replies
  int gathered_ = 0;            // tasks since the last Commit
  int64_t last_request_ = 0;
  std::function<void(const Reply&)> on_reply_;  // of the request under way
  absl::Status failure_;
  std::unique_ptr<Observations> observations_;
  TraceRequestTable traces_;
  IslandPlanner planner_;  // last: its threads post to the queue
};

}  // namespace atl

#endif  // ATOLL_COORDINATOR_LOOP_H_
