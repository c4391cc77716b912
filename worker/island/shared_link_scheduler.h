// The shared-link scheduler: applies the send orders of an island plan's shared links. A worker
// takes part as a sender and, for the links that it schedules, as the one that issues grants. The
// scheduler of a link is the worker that sends the first message in its order.
//
// Order affects time alone, so a failure costs time and nothing else: a message whose last byte is
// not reported within `patience` is forgotten, and one that gets no grant within six times that is
// sent anyway. The loss of a worker ends the plan as usual.

#ifndef ATOLL_WORKER_ISLAND_SHARED_LINK_SCHEDULER_H_
#define ATOLL_WORKER_ISLAND_SHARED_LINK_SCHEDULER_H_

#include <condition_variable>
#include <functional>
#include <map>
#include <mutex>
#include <thread>
#include <vector>

#include "common/protocol/island_plan.h"
#include "common/status.h"
#include "worker/island/send_order.h"
#include "worker/pipeline/transport.h"

namespace atl::worker {

// All calls from any thread. Callbacks come without locks held, on the caller's thread or on one of
// its own; what they call may come back in.
class SharedLinkScheduler {
 public:
  // Never waits; what is lost is lost.
  using SendCall = std::function<void(const NodeId& to, const SharedLinkCall& call)>;
  // Sends, and calls `left` once, on any thread, when the last byte has left or never will.
  using Go = std::function<void(std::function<void()> left)>;

  static constexpr size_t kWaitingMax = 16384;

  SharedLinkScheduler(NodeId worker, SendCall send_call,
                      Duration patience = std::chrono::seconds(10));
  ~SharedLinkScheduler();
  SharedLinkScheduler(const SharedLinkScheduler&) = delete;
  SharedLinkScheduler& operator=(const SharedLinkScheduler&) = delete;

  // REQUIRES: Validate(plan) is OK. Forgets all that waits: it is never sent.
  void SetPlan(const IslandPlan& plan);
  // Forgets all that waits, under the same plan.
  void Forget();
  // No callback comes from a thread of its own after this. Once, at the end.
  void Stop();

  // Returns whether messages like this one have an order.
  bool Has(const MessageTag& tag) const;
  // Calls `go` when it is granted, perhaps before it returns. RESOURCE_EXHAUSTED: too many wait.
  // ABORTED: under the plan in force it has no order, or is not this worker's to send.
  absl::Status Send(const MessageTag& tag, Go go);

  // The number of messages sent under a grant, since the beginning.
  int64_t grants_used() const;

  // A message of another worker. What makes no sense under the plan is ignored.
  void OnCall(const NodeId& from, const SharedLinkCall& call);

 private:
  struct SharedLink {
    NodeId scheduler_worker;
    std::vector<NodeId> senders;  // by position
    SendOrder order;              // where this worker is the scheduler
    explicit SharedLink(Duration patience) : order(patience) {}
  };
  struct Waiting {
    Go go;
    Instant until;
  };
  using Key = std::pair<int32_t, SendPart>;  // link, part
  // Actions to be done without the lock.
  using Actions = std::vector<std::function<void()>>;

  void SendCallLocked(const NodeId& to, const SharedLinkCall& call, Actions* actions);
  void ReceiveLocked(const NodeId& from, const SharedLinkCall& call, Actions* actions);
  void StartLocked(const Key& key, Actions* actions);
  void GrantLocked(int32_t link, Actions* actions);
  void OnLeft(int64_t round, const Key& key);
  void Watch();

  const NodeId worker_;
  const SendCall send_call_;
  const Duration patience_;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<SharedLink> links_;                                 // all below guarded by mutex_
  std::map<PlanMessage, std::pair<int32_t, int32_t>> positions_;  // link, position
  std::map<Key, Waiting> waiting_;
  int64_t grants_used_ = 0;
  int64_t round_ = 0;  // of SetPlan and Forget: what belongs to an earlier one means nothing
  bool stopping_ = false;
  std::thread watch_;  // of the deadlines
};

}  // namespace atl::worker

#endif  // ATOLL_WORKER_ISLAND_SHARED_LINK_SCHEDULER_H_
