// Serves an island's leader: does what its calls say with this worker's devices.
//
// Calls are done one after the other on a thread of the follower's; a member that is lost ends the
// one under way within moments. The leader then sets the island up again; meanwhile the follower
// meets lost members again by itself, and holds on to what it has.

#ifndef ATOLL_WORKER_ISLAND_FOLLOWER_H_
#define ATOLL_WORKER_ISLAND_FOLLOWER_H_

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <variant>

#include "worker/island/member.h"

namespace atl::worker {

class Follower {
 public:
  // What it serves, and what it is doing, whenever that changes. Called on the follower's thread.
  using OnState = std::function<void(int64_t plan_number, const std::string& doing)>;

  // `member` outlives it.
  Follower(GroupMember* member, OnState on_state);
  ~Follower();
  Follower(const Follower&) = delete;
  Follower& operator=(const Follower&) = delete;

  // From now on, serves the leader of this plan, in place of any other. Returns at once, like
  // Unfollow; what is under way is finished first (`at_boundary`) or interrupted. Thread-safe.
  // REQUIRES: the member has the job open, and nobody leads with it until AwaitFree after Unfollow.
  void Follow(const PeerFence& fence, const IslandPlan& plan, bool at_boundary);
  void Unfollow(const std::string& reason);
  // Waits until nothing of this worker serves anybody, after Unfollow. DEADLINE_EXCEEDED: something
  // still does.
  absl::Status AwaitFree(Duration timeout);

 private:
  struct Order {
    PeerFence fence;
    IslandPlan plan;
  };
  struct Called {
    NodeId from;
    v1::GroupFrame frame;
    int64_t order = 0;  // under which it came
  };
  struct Meet {};  // lost members again
  struct End {
    bool stop = false;
  };
  using Task = std::variant<Order, Called, Meet, End>;

  static constexpr size_t kTasksMax = 4096;

  void Add(Task task);
  void Run();
  void Do(Order& order);
  void Do(Called& called);
  void Do(Meet&);
  v1::GroupReply Serve(const NodeId& from, const v1::GroupFrame& frame);
  absl::Status Step(const v1::StepCall& step, v1::GroupReply* reply);
  absl::Status Work(const NodeId& from, const v1::GroupFrame& frame, v1::GroupReply* reply);
  absl::Status WorkOnOuter(const v1::OuterCall& call);
  void Say(const std::string& doing);

  GroupMember* const member_;
  const OnState on_state_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Task> tasks_;  // guarded by mutex_
  int64_t orders_ = 0;      // guarded by mutex_; Follow and Unfollow so far
  int64_t oldest_ = 0;      // guarded by mutex_; of which calls are still done
  bool following_ = false;  // guarded by mutex_
  bool idle_ = false;       // guarded by mutex_

  // The thread's own.
  Order order_;
  int64_t plan_number_ = 0;     // set up
  int64_t traced_number_ = -1;  // of the step that traced_ is of
  StepOutcome traced_;          // newest step that was to be kept
  std::string doing_;
  std::thread thread_;
};

}  // namespace atl::worker

#endif  // ATOLL_WORKER_ISLAND_FOLLOWER_H_
