// What trains: one model, its optimizer and its data behind a small interface, so that the loop
// around it, the shell and tests need not know what computes. A layer's parameters are one flat
// vector; see common/model/layout.h.
//
// Used by one thread at a time, but for Interrupt and what CaptureDelta and StageCarry return.
// Calls block until the work is done. Everything but Prepare, Release and the names REQUIRES a
// prepared job.

#ifndef ATOLL_WORKER_RUNTIME_TRAINER_H_
#define ATOLL_WORKER_RUNTIME_TRAINER_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "common/protocol/control.h"
#include "common/protocol/island_plan.h"
#include "common/protocol/job_spec.h"
#include "common/status.h"
#include "worker/core/actions.h"
#include "worker/outer/outer_state.h"

namespace atl::worker {

struct MeanLoss {
  double loss = 0;      // nats a token
  int64_t tokens = 0;   // that the loss counts
  double accuracy = 0;  // of images: share of them that are classified right
};

// What became of the state when an island took on a plan; see Reconfigured in worker/core.
struct PlanTaken {
  bool kept = false;
  bool step_taken = false;
  std::string reason;
  int64_t replayed = 0;  // replayed steps, from a saved state
  bool resumed = false;  // the state is that of ResumeFrom, and of the steps in `beyond`
  std::vector<LoggedStep> beyond;
  bool base_lost = false;  // parts of theta_base are nowhere; the rest is kept
  bool push_lost = false;  // parts of the pseudo-gradient that is being pushed are nowhere
};

class Trainer {
 public:
  virtual ~Trainer() = default;

  // For display: "cpu", "reference".
  virtual std::string Name() const = 0;

  // Opens model and data, and takes all memory that the job will need. Moments are zero, parameters
  // undefined. An error names file, field and remedy, and leaves nothing behind.
  virtual absl::StatusOr<JobFacts> Prepare(const JobSpec& spec) = 0;
  // Of the job that was prepared: what does not fit here without a plan, so that no memory was
  // taken and the next call is Configure (or Release); empty: all fits.
  virtual std::string Lacks() const { return ""; }
  virtual void Release() = 0;

  // The job's initial weights, random by its seed or from its files, become the parameters.
  virtual absl::Status InitialWeights() = 0;

  // One optimizer step on the training sequences at these positions.
  virtual absl::StatusOr<MeanLoss> Step(const std::vector<PositionRange>& ranges,
                                        double learning_rate) = 0;
  // How many tokens of the training sequences at these positions the loss does not count.
  virtual absl::StatusOr<int64_t> CountMasked(const std::vector<PositionRange>& ranges) = 0;
  // Loss of the parameters over the first `sequences` validation sequences (or all there are) of
  // the held-out data (set 0) or of data.validation's set `set` - 1.
  virtual absl::StatusOr<MeanLoss> Validate(int64_t sequences, int set) = 0;

  // ---- During steps. What these two return is called once, or destroyed, on any thread: steps may
  // go on meanwhile, no other call may. It returns when all is done, or, between two layers, with
  // ABORTED if it is cancelled. ----
  using Completion = std::function<absl::Status(const std::atomic<bool>& cancelled)>;

  // ---- The exchange with the parameter servers, of all that is owned, here and at the island's
  // other workers. ----
  // What this worker owns; null: before Prepare, or the first plan where islands have plans.
  virtual std::shared_ptr<OuterState> outer() const = 0;
  // The pseudo-gradient of the parameters as they are now, whatever steps change; outer()'s tag has
  // it when the completion has ended well.
  virtual absl::StatusOr<Completion> CaptureDelta(const worker::CaptureDelta& command) = 0;
  // Brings what adopting the pulled version adds to the parameters to the devices. An empty
  // completion: there is no room, or no bus to cross, and it would be no quicker so.
  virtual absl::StatusOr<Completion> StageCarry() { return Completion(); }
  // kReplace or kCarry, whatever was staged; the moments are left alone.
  virtual absl::Status AdoptPulled(const worker::AdoptPulled& command) = 0;
  // One after the other.
  absl::StatusOr<std::vector<MeanLoss>> ValidateSets(int64_t sequences, int sets) {
    std::vector<MeanLoss> losses;
    for (int set = 0; set < sets; ++set) {
      ATOLL_ASSIGN_OR_RETURN(const MeanLoss loss, Validate(sequences, set));
      losses.push_back(loss);
    }
    return losses;
  }
  // Losses of theta_base over sets 0 to `sets` - 1; the parameters come back, also if it fails.
  virtual absl::StatusOr<std::vector<MeanLoss>> ValidateBase(int64_t sequences, int sets) = 0;
  // The optimizer's state is as before its first step.
  virtual absl::Status ResetMoments() = 0;

  // ---- Trainers of several devices. ----
  // Lays the island out by this plan (number 0: all on the first device), of this generation of the
  // job, with whatever parameters and moments its members hold. Also to go on after any call has
  // failed, with the same plan. `shards`: the job's. `before`: a member that led until now in this
  // generation and sends `known`; empty: none does.
  virtual absl::StatusOr<PlanTaken> Configure(const JobId& /*job*/, Generation /*generation*/,
                                              const IslandPlan& /*plan*/,
                                              const std::vector<ShardPlacement>& /*shards*/ = {},
                                              const NodeId& /*before*/ = "",
                                              Leadership* /*known*/ = nullptr) {
    return absl::UnimplementedError("this worker runs no plans");
  }
  // ---- Saved states (worker/state). ----
  // Saves the state as it is now, in parallel to later steps, in this tier. The result goes to the
  // callback given at construction.
  virtual absl::StatusOr<Kept> SaveState(const LocalCheckpoint& /*about*/, Tier /*tier*/) {
    return Kept::kNot;
  }
  // The next Configure that succeeds leaves the state of this save, or, where the members' devices
  // have that, a later one by steps on data in `leased`; 0: the newest that there is.
  virtual void ResumeFrom(int64_t /*save*/, std::vector<PositionRange> /*leased*/) {}

  // Another worker takes over: this is for it to fetch, until Release or the next Configure.
  virtual void Keep(Leadership /*known*/) {}
  // Ends soon whatever several devices do together, in the call under way. For any thread.
  virtual void Interrupt(const std::string& /*reason*/) {}
  // Earlier interrupts do not concern the next call. Never while Interrupt is called.
  virtual void ForgetInterrupts() {}
};

}  // namespace atl::worker

#endif  // ATOLL_WORKER_RUNTIME_TRAINER_H_
