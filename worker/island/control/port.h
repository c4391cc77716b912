// The port of an island's leader and followers (leader.h, follower_control.h): this worker's part
// of the island, and the calls to the other members. GroupMember is the real one; tests/sim has one
// without threads.
//
// Threads: Call, Await, `Notify`, Interrupt, Do of work in parallel to steps, Log and ChangesSince
// are for any thread; everything else is for the caller, one at a time. Open, Meet, Do and Await
// block; Interrupt ends all four with ABORTED.

#ifndef ATOLL_WORKER_ISLAND_CONTROL_PORT_H_
#define ATOLL_WORKER_ISLAND_CONTROL_PORT_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/ids.h"
#include "common/net/peer/peer_fence.h"
#include "common/protocol/control.h"
#include "common/protocol/island_plan.h"
#include "common/protocol/job_spec.h"
#include "common/status.h"
#include "common/time.h"
#include "worker/island/control/clocks.h"
#include "worker/island/messages/wire.h"
#include "worker/model/runner.h"
#include "worker/outer/outer_state.h"
#include "worker/state/replay_log.h"
#include "worker/state/save_plan.h"

namespace atl::worker {

// The job that is open.
struct IslandJob {
  JobSpec spec;
  std::vector<LayerSize> layers;
  std::vector<std::vector<Range>> undivided;  // by layer, see common/model/optimizer_state.h
  int64_t frozen_bytes = 0;  // of the tensors that an adapter leaves as they are, of a host
};

struct IslandLimits {
  Duration meet;  // of all members accepting a plan
  Duration call;  // of anything that is not a step
  Duration move;  // of all members having their layers, besides what the bytes need
};

// Work that is done one after the other, in parallel to its caller's.
class WorkLane {
 public:
  virtual ~WorkLane() = default;  // waits for what is under way; what is behind it is dropped
  virtual void Add(std::function<void()> work) = 0;  // for any thread; never waits
  virtual void AwaitIdle() = 0;                      // until all of it is done
};

class IslandPort {
 public:
  virtual ~IslandPort() = default;

  virtual IslandMember Self() const = 0;
  virtual std::unique_ptr<WorkLane> NewLane() = 0;
  virtual Instant Now() const = 0;

  // ---- The job. What this worker held of another one is forgotten. ----
  // Opens model and data. Once `cancelled` says so, what takes long ends with ABORTED. An error
  // names file, field and remedy.
  virtual absl::StatusOr<JobFacts> Open(const JobSpec& spec, std::function<bool()> cancelled) = 0;
  virtual void Close() = 0;
  virtual int devices() const = 0;  // of this worker
  // How many tokens of the training sequences at these positions the loss does not count.
  virtual absl::StatusOr<int64_t> CountMasked(const std::vector<PositionRange>& ranges) = 0;
  // Selects the first `sequences` held-out ones, or all there are, of set 0 or of
  // data.validation's.
  virtual PositionRange SelectValidationPositions(int set, int64_t sequences) const = 0;
  // Scores a task of spec.evaluation by what `evaluate` finds at each of its positions, which lie
  // behind those of validation. Its errors are returned.
  using EvaluatePosition = std::function<absl::StatusOr<LossSum>(int64_t position)>;
  virtual absl::StatusOr<TaskScore> ScoreTask(size_t task,
                                              const EvaluatePosition& evaluate) const = 0;
  // Returns the references of these pairs, in order, that were found for a ReferenceCall since the
  // job was opened; none: of some there are none.
  virtual std::vector<double> GetReferences(const ReferenceCall& /*call*/) const { return {}; }
  virtual const IslandJob* island_job() const = 0;  // null: none is open
  virtual IslandLimits limits() const = 0;
  // Returns the longest time that what the present plan's devices do together may take.
  virtual Duration StepTimeout() const = 0;
  virtual int64_t NowUs() const = 0;  // since 1970: numbers of saves

  // ---- The plan. ----
  // Speaks under this plan from now on. Without a plan's number in the fence: alone.
  virtual absl::Status Join(const PeerFence& fence, const IslandPlan& plan) = 0;
  // Until all of them speak under the plan, too.
  virtual absl::Status Meet(const std::vector<NodeId>& workers,
                            const std::atomic<bool>& interrupted) = 0;
  // Begins an epoch: what belongs to earlier attempts at setting the plan up is dropped from now
  // on.
  virtual void BeginEpoch(int64_t epoch) = 0;
  virtual int64_t epoch() const = 0;
  virtual void Leave() = 0;                 // disconnects from all members
  virtual int64_t last_number() const = 0;  // of the steps and evaluations begun

  // ---- Calls (proto/group.proto). ----
  // Does here what a call requests of a member. `interrupted`: see Engine::Configure.
  virtual absl::StatusOr<GroupReply> Do(const GroupFrame& call,
                                        const std::atomic<bool>* interrupted = nullptr) = 0;
  // Sends a call to another member; an error: it is not under way. Every other one is awaited.
  virtual absl::StatusOr<CallId> Call(const NodeId& to, GroupFrame frame) = 0;
  virtual absl::StatusOr<GroupReply> Await(CallId id, Duration timeout) = 0;
  virtual void Reply(const NodeId& to, CallId call, GroupReply reply) = 0;
  // No reply; lost with the peer. To itself: done at once.
  virtual void Notify(const NodeId& to, GroupFrame frame) = 0;
  // Ends what this worker's devices do, soon.
  virtual void InterruptWork(const std::string& reason) = 0;
  // And every wait for others.
  virtual void Interrupt(const std::string& reason) = 0;
  // Returns the loss of the newest step or evaluation that Do has made.
  virtual LossSum newest_loss() const = 0;
  virtual double newest_gradient_norm() const = 0;  // of the newest step, before clipping
  virtual bool newest_skipped() const = 0;
  // This worker leads: a member's reply that is an error ends what its devices do, and what becomes
  // of the members' saves is reported, on any thread.
  using OnSaveDone = std::function<void(const NodeId& from, const SaveDone& done)>;
  virtual void Lead(OnSaveDone on_save_done) = 0;
  virtual void StopLeading() = 0;  // no report is under way when it returns; saves end

  // ---- What is kept here. ----
  // For the parameter servers; null: no plan was set up for this job.
  virtual std::shared_ptr<OuterState> outer() const = 0;
  // Keeps what this worker knows of the island that it led, for its successor.
  virtual void Keep(IslandHandover kept) = 0;
  virtual void DropKept() = 0;
  // Saved states. Empty: there is no such tier.
  virtual absl::StatusOr<std::vector<HeldSave>> SavesIn(Tier tier) = 0;
  virtual void DropCopies() = 0;  // those in memory
  // Returns what has happened to the island's state since this save.
  virtual std::optional<ReplayLog::Changes> ChangesSince(int64_t save) const = 0;
  virtual void Log(const std::function<void(ReplayLog&)>& change) = 0;
};

}  // namespace atl::worker

#endif  // ATOLL_WORKER_ISLAND_CONTROL_PORT_H_
