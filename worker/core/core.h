// The worker's decisions: a pure state machine between the coordinator's messages, the trainer and
// the transfers. Start here; README.md has the reasons.
//
// A worker runs one island of one job at a time, or follows the leader of one. The states of an
// island:
//
//   hello -> prepare -> order -> (set up the plan) ->
//   (make and push the initial weights | pull | resume the checkpoint)
//   -> train H steps on leased sequences -> request a push -> push when granted -> get the outcome
//   -> pull the committed version -> adopt it -> train ...
//
// Rules:
//  * At most one contribution is in flight, from CaptureDelta until a version that decided it is
//    adopted. It is requested when its pseudo-gradient is there, which may take a while. Meanwhile
//    the island waits (overlap none) or trains on (overlap carry) for at most kMaxCarriedRounds * H
//    steps; what it learns there goes into the next contribution, which is made H steps after the
//    adoption: so islands that were apart in time push together again.
//  * A rejected contribution's sequences are the coordinator's to lease again. Steps made after
//    that push stay, unless the outcome says warm_up_again: then their sequences are trained again.
//  * Without a coordinator it trains until its leases are used up; it requests data ahead for
//    kLeasedRoundsAhead rounds.
//  * A new generation forgets leases, contribution and local steps: they were fenced off (fencing).
//  * State is saved to disks and the remote tier only when nothing is in flight, so that a worker
//    that resumes from it cannot push the same steps twice.
//  * Everything unanswered is sent again after kRetryInterval, and at once after a reconnect; a
//  push
//    that is granted is requested again after ever longer times, while grants are the same.
//    Messages of an older epoch, generation or sequence, and repetitions, change nothing; nor do
//    those of another cluster than the first that welcomed it.
//  * A job that is stopped frees memory; only ForgetJob deletes what is saved of it.
//  * A loss that is not finite is never pushed: the island goes back to the committed version and
//    trains again from there. After kNotFiniteTriesMax tries in a row, or when a command fails for
//    good (CommandFailed), the worker refuses the job (JobRefused) and does nothing more for it
//    until it is stopped. A failure that may be temporary is retried, after ever longer times.
//  * What it waits for is reported in IslandProgress::activity.
//
// The island's plan (IslandOrder.plan; number 0: this worker's first device; group.cc):
//  * Before anything else, and after any command that failed, the trainer is set up for the plan
//    (Reconfigure). A larger plan number waits for the end of the command under way if the order
//    says that it may (at_step_end); otherwise, and if the generation is another, what the devices
//    do is interrupted.
//  * A plan within one generation keeps leases, base and local steps if the trainer kept the state,
//    on devices or in saves. If it is lost, the island goes back to the committed version, on the
//    same sequences.
//  * An order may name a saved state to resume from: the trainer is set up with that, pulls its
//    base and keeps what it has (kKeep).
//  * A step that failed may have been taken by every device: it counts if Reconfigured says so.
//
// An island of several workers (MemberOrder; elastic membership: plans add and remove workers): its
// leader does all of the above for it.
//  * A follower opens the job, serves its leader (Follow), says so in MemberProgress, and has no
//    leases, contributions or checkpoints.
//  * When a worker that shares an island is to end it sends Leaving and goes on leading or serving
//    until it is stopped: its part of the state has to move. It ends when for kLeaveLimit, and two
//    steps (the one under way, and the order's way), nothing has shown progress of that (a new
//    plan, one that is set up or can be, a chunk that it sent), or after kLeaveLimitMax in all.
//  * A leader that is ordered to follow in the same generation finishes what is under way, hands
//    over what it knows (Leadership), and follows; its successor takes over, and goes on with the
//    same leases, contributions and steps.
//
// Pure: no I/O, clock or threads. One thread at a time.

#ifndef ATOLL_WORKER_CORE_CORE_H_
#define ATOLL_WORKER_CORE_CORE_H_

#include <memory>
#include <string>

#include "common/time.h"
#include "worker/core/actions.h"

namespace atl::worker {

inline constexpr int kLeasedRoundsAhead = 2;
inline constexpr int kMaxCarriedRounds = 3;
// Tries in a row without a contribution, after which the worker refuses the job.
inline constexpr int kNotFiniteTriesMax = 3;
// Longer than the coordinator plans.
inline constexpr Duration kLeaveLimit = std::chrono::seconds(30);
inline constexpr Duration kLeaveLimitMax = std::chrono::minutes(10);

// The worker's identity; fixed for the process.
struct Identity {
  NodeId name;
  Incarnation incarnation = 0;  // larger than that of any earlier process of this name
  WorkerHello hello = {};       // its mark as it was remembered, its jobs as they were found
  Duration heartbeat_interval_max = std::chrono::minutes(1);  // whatever is requested
  bool signs = false;  // what it pushes as a leader: digests of all of it are made
};

class WorkerCore {
 public:
  explicit WorkerCore(Identity identity);
  ~WorkerCore();
  WorkerCore(WorkerCore&&) noexcept;
  // The copy goes on by itself, as this one would.
  WorkerCore(const WorkerCore& other);

  // `now` never goes back. The first event is usually Connected; Tick is always allowed.
  Actions Step(Instant now, const Event& event);

  // Returns the activity that the next heartbeat would report; empty when the worker runs no
  // island.
  const std::string& activity() const;
  // Number of the newest step of the island that it leads, since the job began: replayed steps get
  // new numbers, except for what a restart forgets.
  int64_t inner_step() const;
  // The island that it leads is ordered to pause.
  bool paused() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace atl::worker

#endif  // ATOLL_WORKER_CORE_CORE_H_
