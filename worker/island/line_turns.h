// Keeps the send orders of an island plan's shared lines: a worker's part in them, as sender and,
// for the lines whose order it keeps, as the one that grants turns. The order of a line is kept by
// the worker that sends the first message in it.
//
// Order affects time alone, so a failure costs time and nothing else: a message whose last byte is
// not reported within `patience` is forgotten, and one that gets no turn within six times that goes
// anyway. The loss of a worker ends the plan as usual.

#ifndef ATOLL_WORKER_ISLAND_LINE_TURNS_H_
#define ATOLL_WORKER_ISLAND_LINE_TURNS_H_

#include <condition_variable>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "common/protocol/island_plan.h"
#include "common/status.h"
#include "worker/island/line_order.h"
#include "worker/pipeline/transport.h"

namespace atl::worker {

// What senders and keepers of an order say to each other.
struct LineCall {
  enum class What : uint8_t {
    kReady = 0,  // to the keeper: it may go
    kGo = 1,     // to the sender: it is its turn
    kLeft = 2,   // to the keeper: its last byte has left
  };
  What what = What::kReady;
  int32_t line = 0;  // of the plan's link_orders
  LinePart part;

  bool operator==(const LineCall&) const = default;
};

// All calls from any thread. Callbacks come without locks held, on the caller's thread or on one of
// its own; what they call may come back in.
class LineTurns {
 public:
  // Never waits; what is lost is lost.
  using Tell = std::function<void(const NodeId& to, const LineCall& call)>;
  // Sends, and calls `left` once, on any thread, when the last byte has left or never will.
  using Go = std::function<void(std::function<void()> left)>;

  static constexpr size_t kWaitingMax = 16384;

  LineTurns(NodeId worker, Tell tell, Duration patience = std::chrono::seconds(10));
  ~LineTurns();
  LineTurns(const LineTurns&) = delete;
  LineTurns& operator=(const LineTurns&) = delete;

  // REQUIRES: Validate(plan) is OK. Forgets all that waits: it is never sent.
  void SetPlan(const IslandPlan& plan);
  // Likewise, under the same plan.
  void Forget();
  // No callback comes from a thread of its own after this. Once, at the end.
  void Stop();

  // Whether messages like this one have an order.
  bool Has(const MessageTag& tag) const;
  // Calls `go` in its turn, perhaps before it returns. RESOURCE_EXHAUSTED: too many wait. ABORTED:
  // under the plan in force it has no order, or is not this worker's to send.
  absl::Status Send(const MessageTag& tag, Go go);

  // The number of messages sent by a granted turn, since the beginning.
  int64_t taken() const;

  // What another worker says. What makes no sense under the plan is ignored.
  void OnCall(const NodeId& from, const LineCall& call);

 private:
  struct Line {
    NodeId keeper;
    std::vector<NodeId> senders;  // by place
    LineOrder order;              // where this worker is the keeper
    explicit Line(Duration patience) : order(patience) {}
  };
  struct Waiting {
    Go go;
    Instant until;
  };
  using Key = std::pair<int32_t, LinePart>;  // line, part
  // To be done without the lock.
  using Actions = std::vector<std::function<void()>>;

  void SayLocked(const NodeId& to, const LineCall& call, Actions* actions);
  void ReceiveLocked(const NodeId& from, const LineCall& call, Actions* actions);
  void StartLocked(const Key& key, Actions* actions);
  void TurnLocked(int32_t line, Actions* actions);
  void OnLeft(int64_t round, const Key& key);
  void Watch();

  const NodeId worker_;
  const Tell tell_;
  const Duration patience_;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Line> lines_;                                    // all below guarded by mutex_
  std::map<PlanMessage, std::pair<int32_t, int32_t>> places_;  // line, place
  std::map<Key, Waiting> waiting_;
  int64_t taken_ = 0;
  int64_t round_ = 0;  // of SetPlan and Forget: what belongs to an earlier one means nothing
  bool stopping_ = false;
  std::thread watch_;  // of the deadlines
};

}  // namespace atl::worker

#endif  // ATOLL_WORKER_ISLAND_LINE_TURNS_H_
