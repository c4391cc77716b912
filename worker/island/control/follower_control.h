// Carries out the leader's calls at a follower, in order. Calls are done one after the other; an
// order for another plan replaces what waits, and what came under an order that was replaced is
// refused.
//
// No thread of its own: Follower runs it on one, tests/sim in virtual time.
//
// Threads: Do is for one thread, which waits and works. Everything else never waits, and is called
// by one at a time, under a lock if there are several; also while Do works.

#ifndef ATOLL_WORKER_ISLAND_CONTROL_FOLLOWER_CONTROL_H_
#define ATOLL_WORKER_ISLAND_CONTROL_FOLLOWER_CONTROL_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <string>
#include <variant>

#include "worker/island/control/port.h"

namespace atl::worker {

class FollowerControl {
 public:
  // Receives the plan that the follower serves and its activity, whenever these change; within Do.
  using OnState = std::function<void(int64_t plan_number, const std::string& activity)>;

  // `port` outlives it.
  FollowerControl(IslandPort* port, OnState on_state)
      : port_(port), on_state_(std::move(on_state)) {}

  // ---- What comes. ----
  // Serves the leader of this plan from now on; behind what waits already (`at_step_end`), or in
  // place of it. The order's number, for OnCall.
  int64_t Follow(const PeerFence& fence, const IslandPlan& plan, bool at_step_end);
  bool Unfollow();  // false: it serves no leader
  // Returns whether the work that goes on is to be interrupted before the call is taken on.
  static bool BeginsAnew(const GroupFrame& frame);
  // A call from another member under this order.
  void OnCall(const NodeId& from, GroupFrame frame, int64_t order);
  void OnPeerLost();
  bool following() const { return following_; }

  // ---- What is to be done. ----
  struct Order {
    PeerFence fence;
    IslandPlan plan;
  };
  struct Called {
    NodeId from;
    GroupFrame frame;
    int64_t order = 0;  // under which it came
  };
  struct Meet {};  // lost members again
  struct Leave {};
  using Task = std::variant<Order, Called, Meet, Leave>;
  bool waiting() const { return !tasks_.empty(); }
  // The next one. A call that an order has replaced since it came is no longer to be done.
  struct Next {
    Task task;
    bool replaced = false;
  };
  std::optional<Next> Take();

  void Do(Next next);

 private:
  static constexpr size_t kTasksMax = 4096;

  void Add(Task task);
  void DoOrder(Order order);
  void DoCall(const Called& called, bool replaced);
  GroupReply Serve(const NodeId& from, const GroupFrame& frame);
  void ReportSetUp(const NodeId& leader, const absl::Status& status);
  void Say(const std::string& activity);

  IslandPort* const port_;
  const OnState on_state_;
  std::deque<Task> tasks_;
  int64_t orders_ = 0;  // Follow and Unfollow so far
  int64_t oldest_ = 0;  // of which calls are still done
  bool following_ = false;

  // Fields of the thread that calls Do.
  Order order_;
  int64_t plan_number_ = 0;  // set up
  std::string activity_;
};

}  // namespace atl::worker

#endif  // ATOLL_WORKER_ISLAND_CONTROL_FOLLOWER_CONTROL_H_
