// The island's parameters and what is done to them: carries out the core's trainer commands. It is
// the worker's side of DiLoCo: H inner steps, then a pseudo-gradient for the outer step.
//
// What exists while a job runs: in the trainer's memory theta, its gradient and two moments; in
// host memory, of what this worker owns, theta_base, delta (being pushed) and pulled (being
// filled): trainer()->outer(). theta at the push is not kept: it is theta_base - delta. Where
// pushes are quantised there are the residual before and after the push, and the encoded
// pseudo-gradient, of a quarter at most.
//
// Two things are done on threads of their own while the trainer goes on: a captured pseudo-gradient
// is made of a copy of its state that it hands over, and what a pulled version is to add to the
// parameters is brought to its devices. Every command but TrainStep waits for them first. (Saves
// are the trainer's: worker/state.)
//
// Threads: Run and StagePulled are for the compute thread alone. pulled() and delta() are for
// the thread that starts transfers, in the order that the core prescribes: pulled() between
// Prepared (or Reconfigured) and AdoptPulled while nothing is being staged, delta() after
// DeltaReady. Their shared_ptr keeps memory alive for transfers that end late.

#ifndef ATOLL_WORKER_RUNTIME_ISLAND_H_
#define ATOLL_WORKER_RUNTIME_ISLAND_H_

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "worker/core/actions.h"
#include "worker/outer/delta.h"
#include "worker/runtime/side_work.h"
#include "worker/runtime/trainer.h"

namespace atl::worker {

struct IslandOptions {
  // For measurements on one machine: every step is computed as usual, and then lasts, by sleeping,
  // max(its computation, emulate_step) * emulate_slowdown. Steps that mostly sleep let islands
  // share cores without slowing each other. Only timing changes. Slowdown is at least 1.
  double emulate_slowdown = 1;
  Duration emulate_step{0};
  // Of the host, for the model; 0: no limit. Prepare refuses what needs more.
  int64_t host_bytes = 0;
  // The trainer's copies of the model are in that memory, too. Otherwise its devices look after
  // themselves.
  bool trainer_on_host = true;
};

class Island {
 public:
  // `transfers_started` counts transfers ever begun and
  // `transfers_running` those that go on now; both are called on the compute thread.
  struct Hooks {
    std::function<void(Event)> post;  // thread-safe
    // Deletes what is on the disk of a job that has been removed.
    std::function<void(const JobId&)> remove = [](const JobId&) {};
    std::function<int64_t()> transfers_started = [] { return 0; };
    std::function<int64_t()> transfers_running = [] { return 0; };
    // What this worker's devices take for the job that was just opened, where it is wanted: in any
    // case if the job `needs_plan` to fit.
    // What is `cancelled` ends soon, with what is known by then.
    std::function<std::vector<DeviceProfile>(const JobSpec&, const JobFacts&, bool needs_plan,
                                             const std::atomic<bool>& cancelled)>
        profiles = nullptr;
  };
  Island(Trainer* trainer, IslandOptions options, Hooks hooks);
  ~Island();  // what is being made ends

  // Carries out a trainer command or ReleaseJob, then posts its event.
  void Run(const Action& command);
  // Instead of Run, for a command that was interrupted before it began; false: Run it.
  bool Refuse(const Action& command, const std::string& reason);
  // For any thread: the command that Run is doing ends soon, and what is done in parallel to it.
  // ForgetInterrupts before Run and StagePulled, not while Interrupt is called.
  void Interrupt(const std::string& reason);
  void ForgetInterrupts();

  // The pull is complete: posts `pulled`, but first, where the devices have memory of their own and
  // room, brings to them what adopting it would add to the parameters, during the steps that
  // follow. Nothing is done or posted if CancelStaging was called since `ticket` was drawn, and if
  // it is called meanwhile, a Tick is posted when the layer on its way, the last one, is there.
  void StagePulled(const PullDone& pulled, int64_t ticket);
  // These are for any thread, and never wait. After CancelStaging pulled() is not read any more
  // until AdoptPulled, but by what goes on of the staging.
  int64_t StagingTicket() const;
  void CancelStaging();
  bool staging() const { return stager_.going(); }

  std::shared_ptr<LayerBuffers> pulled() const { return trainer_->outer()->pulled(); }
  std::shared_ptr<const Delta> delta() const { return trainer_->outer()->delta(); }

 private:
  Event Do(const Prepare& command);
  Event Do(const Reconfigure& command);
  Event Do(const MakeInitialWeights& command);
  Event Do(const TrainStep& command);
  Event Do(const AdoptPulled& command);
  Event Do(const Validate& command);
  Event Do(const Handover& command);
  Event Do(const SaveState& command);
  void Do(const CaptureDelta& command);
  void Do(const ReleaseJob& command);

  absl::StatusOr<JobFacts> Open(const Prepare& command);
  absl::Status CheckMemory(const IslandPlan* plan) const;
  void AwaitSideWork();
  bool StagingWanted(int64_t ticket) const;
  absl::Status Adopt(const AdoptPulled& command);

  Trainer* const trainer_;
  const IslandOptions options_;
  const Hooks hooks_;

  JobId job_;
  JobSpec spec_;
  JobFacts facts_;
  bool fits_ = false;     // it has been seen that the host has room
  bool stepped_ = false;  // since the last adoption or capture
  int64_t masked_at_resume_ = 0;
  std::atomic<bool> interrupted_ = false;  // the command under way
  mutable std::mutex stage_mutex_;
  int64_t stagings_cancelled_ = 0;  // guarded by stage_mutex_

  // They use the trainer's outer() while they go on: the capturer writes its pseudo-gradient; both
  // read theta_base, the stager the pulled version and the pseudo-gradient.
  SideWork capturer_, stager_;
};

}  // namespace atl::worker

#endif  // ATOLL_WORKER_RUNTIME_ISLAND_H_
