// The state that the parts of a GroupMember share: the job that is open and its engine, the plan
// that this worker speaks under, interrupts, and what has happened to the island's state.
//
// Threads: all of it is for any thread. An accessor is one look: two of them may see two plans, and
// `peer_session` is for what must belong together. What is returned stays valid, whatever follows.
//
// Locks of a member: the innermost are the mutexes of this class, of MemberLayers and of
// OuterExchange, and those of the objects that they hold; nothing else is called with one of them.
// Outside of these a thread holds one at most of GroupMember::meeting_mutex_ (whom the link speaks
// with), GroupMember::hooks_mutex_ (while a hook is called) and engine_mutex().

#ifndef ATOLL_WORKER_ISLAND_MEMBER_MEMBER_STATE_H_
#define ATOLL_WORKER_ISLAND_MEMBER_MEMBER_STATE_H_

#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "common/net/peer/peer_fence.h"
#include "common/object_store/object_store.h"
#include "common/protocol/island_plan.h"
#include "proto/group.plain.h"
#include "worker/island/job.h"
#include "worker/island/member/step_log.h"
#include "worker/pipeline/engine.h"
#include "worker/pipeline/utilisation.h"

namespace atl::worker {

class MemberState {
 public:
  explicit MemberState(NodeId name) : name_(std::move(name)) {}
  MemberState(const MemberState&) = delete;
  MemberState& operator=(const MemberState&) = delete;

  const NodeId& name() const { return name_; }  // of this worker

  // ---- The job. ----
  std::shared_ptr<const GroupJob> job() const;  // null: none is open
  std::shared_ptr<Engine> engine() const;       // likewise
  // FAILED_PRECONDITION: no job is open.
  absl::StatusOr<std::shared_ptr<const GroupJob>> OpenJob() const;
  absl::StatusOr<std::shared_ptr<Engine>> OpenEngine() const;
  // Held by who works the engine; interrupts, snapshots and additions do without.
  std::mutex& engine_mutex() { return engine_mutex_; }
  // Calls `work` with the engine, while no other thread works it. FAILED_PRECONDITION likewise.
  template <typename Work>
  auto OnEngine(const Work& work) -> decltype(work(std::declval<Engine&>())) {
    ATOLL_ASSIGN_OR_RETURN(const std::shared_ptr<Engine> engine, OpenEngine());
    const std::lock_guard lock(engine_mutex_);
    return work(*engine);
  }
  void Open(std::shared_ptr<const GroupJob> job, std::shared_ptr<Engine> engine);
  // Neither job nor handover is here any more. The engine that was; it may need the job to its end.
  std::shared_ptr<Engine> Close();

  // ---- The plan. ----
  struct PeerSession {
    PeerFence fence;
    std::shared_ptr<const IslandPlan> plan;  // an empty one before Join and after Leave
  };
  PeerSession peer_session() const;
  PeerFence fence() const;
  std::shared_ptr<const IslandPlan> plan() const;
  bool SpeaksUnder(const PeerFence& fence) const;
  // Under another fence attempts are counted from the beginning, and what was seen is forgotten.
  void Join(const PeerFence& fence, const IslandPlan& plan);
  PeerFence Leave();  // the fence stays, and is returned

  // ---- Attempts at setting it up, and interrupts. ----
  int64_t epoch() const { return epoch_; }
  void BeginEpoch(int64_t epoch) { epoch_ = epoch; }
  // The leader interrupts this attempt. Whether to stop: perhaps of one that has not begun here.
  bool TakeInterrupt(const PeerFence& fence, int64_t epoch);
  bool IsInterrupted(int64_t epoch) const { return interrupted_epoch_ >= epoch; }
  void Interrupt() { ++interrupts_; }
  // True once Interrupt has been called after this. Must not outlive this object.
  Cancelled UntilInterrupted() const;

  // ---- Steps. ----
  StepLog& log() { return log_; }
  const StepLog& log() const { return log_; }
  void BeginStep();         // under the present plan
  bool HasStepped() const;  // the newest step was of the present job and generation
  // Records what a step's outcome shows of devices and all-reduces, and puts their model's digest
  // into it. Nothing without a plan to compare it with.
  void RecordOutcome(uint64_t model_digest, StepOutcome* outcome);
  std::vector<DeviceWork> work() const;
  std::vector<AllReduceTimes> sums() const;
  double utilisation(Instant now) const;  // see Utilisation::Get

  // ---- What this worker knows of the island that it led. ----
  void Keep(std::optional<IslandHandover> kept);
  std::optional<IslandHandover> kept() const;

 private:
  void ForgetSeen();  // with mutex_ held

  const NodeId name_;
  StepLog log_;
  std::atomic<int64_t> epoch_ = 0;
  std::atomic<int64_t> interrupted_epoch_ = -1;  // newest that the leader has abandoned
  std::atomic<int64_t> interrupts_ = 0;
  std::mutex engine_mutex_;

  mutable std::mutex mutex_;  // guards all below
  std::shared_ptr<const GroupJob> job_;
  std::shared_ptr<Engine> engine_;
  PeerFence fence_;
  std::shared_ptr<const IslandPlan> plan_ = std::make_shared<IslandPlan>();
  PeerFence stepped_;  // of the newest step
  std::vector<DeviceWork> work_;
  std::vector<AllReduceTimes> sums_;
  Utilisation utilisation_;
  std::optional<IslandHandover> kept_;
};

}  // namespace atl::worker

#endif  // ATOLL_WORKER_ISLAND_MEMBER_MEMBER_STATE_H_
