// Serves an island's leader with this worker's devices: FollowerControl on a thread of its own.
//
// A member that is lost ends the call under way within moments. The leader then sets the island up
// again; meanwhile the follower meets lost members again by itself, and holds on to what it has.

#ifndef ATOLL_WORKER_ISLAND_CONTROL_FOLLOWER_H_
#define ATOLL_WORKER_ISLAND_CONTROL_FOLLOWER_H_

#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>

#include "worker/island/control/follower_control.h"
#include "worker/island/member/member.h"

namespace atl::worker {

class Follower {
 public:
  // Called on the follower's thread.
  using OnState = FollowerControl::OnState;

  // `member` outlives it.
  Follower(GroupMember* member, OnState on_state);
  ~Follower();
  Follower(const Follower&) = delete;
  Follower& operator=(const Follower&) = delete;

  // Serves the leader of this plan instead of any other from now on. Returns at once, like
  // Unfollow; what is under way is finished first (`at_step_end`) or interrupted. Thread-safe.
  // REQUIRES: the member has the job open, and no trainer leads with it until AwaitFree after
  // Unfollow.
  void Follow(const PeerFence& fence, const IslandPlan& plan, bool at_step_end);
  void Unfollow(const std::string& reason);
  // Waits until no device of this worker serves a leader, after Unfollow. DEADLINE_EXCEEDED:
  // something still does.
  absl::Status AwaitFree(Duration timeout);

 private:
  void Run();

  GroupMember* const member_;
  std::mutex mutex_;
  std::condition_variable changed_;
  FollowerControl control_;  // guarded by mutex_, but for Do: the thread's own
  bool idle_ = false;        // guarded by mutex_
  bool stopping_ = false;    // guarded by mutex_
  std::thread thread_;
};

}  // namespace atl::worker

#endif  // ATOLL_WORKER_ISLAND_CONTROL_FOLLOWER_H_
