// Inside of WorkerCore; included by its sources only. In one call: Step notes the event (On...),
// then Plan considers the whole state and issues what is due now. Nothing is issued anywhere else,
// so events only have to keep the state true.

#ifndef ATOLL_WORKER_CORE_IMPL_H_
#define ATOLL_WORKER_CORE_IMPL_H_

#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "worker/core/core.h"
#include "worker/core/parts.h"
#include "worker/core/stage_link_log.h"

namespace atl::worker {

class WorkerCore::Impl {
 public:
  explicit Impl(Identity identity);
  Actions Step(Instant now, const Event& event);

  std::string activity_;
  int64_t inner_step() const { return counters_.inner_step; }
  bool paused() const { return order_ && order_->run == RunState::kPause; }

 private:
  enum class Command {
    kNone,
    kPrepare,
    kReconfigure,
    kInitialWeights,
    kStep,
    kCapture,
    kAdopt,
    kValidate,
    kSave,
    kHandover
  };

  // ---- core.cc: events of the link, orders, preparation ----
  void On(const Connected&);
  void On(const ConnectionLost&);
  void On(const Received&);
  void On(const ShutdownRequested&);
  void On(const Tick&) {}
  void OnMessage(const Welcome&);
  void OnMessage(const Refused&);
  void OnMessage(const PrepareJob&);
  void OnMessage(const IslandOrder&);
  template <typename Order>
  bool IsNewer(const Order&);
  void RestartTransfers();
  void EndJob(const JobId& job);
  void GiveUpPreparing(const std::string& reason);
  void ForgetIsland();
  void ForgetCounts();
  void OnMessage(const MeasureLinks&);
  void On(const LinksMeasured&);
  void OnMessage(const TraceNextStep&);
  void OnMessage(const ForgetJob&);
  bool Accepts(const ToWorker& message);
  void RememberCoordinator();
  void On(const StepTraced&);
  void On(const Prepared&);
  void On(const PrepareFailed&);

  // ---- group.cc: islands of several workers ----
  void OnMessage(const MemberOrder&);
  void On(const Drained&);
  void On(const Reconfigured&);
  void On(const FollowerState&);
  void On(const StageLinksSeen&);
  void On(const MemorySeen& event) { memory_ = event.devices; }
  void On(const Measuring&);
  void On(const HandedOver&);
  void HandoverTo(const MemberOrder& order);
  void PlanHandover();
  Leadership Known() const;
  void TakeOver(const Leadership& known);
  // Another worker has yet to hand this island over.
  bool TakingOver() const {
    return !order_->takes_over_from.empty() && taken_over_ != order_->generation;
  }
  bool SharesIsland() const;
  int64_t SettingUp() const;
  void Interrupt(const std::string& reason);
  void PushLost(const std::string& reason);
  void StateLost(const std::string& reason);
  void BaseLost();
  void FailedStepEnded(bool taken);
  void StopFollowing(const std::string& reason);
  void PlanFollow();
  void PlanLeaving();
  void On(const TransferDue&) { LeaveLater(); }
  void LeaveLater();
  bool StartReconfigure();
  // Returns whether the trainer is set up for the order's plan.
  bool SetUp() const { return configured_ == PlanName{order_->generation, order_->plan.number}; }

  // ---- training.cc: events of the trainer ----
  void On(const InitialWeightsMade&);
  void On(const StepDone&);
  void On(const DeltaCaptured&);
  void On(const DeltaReady&);
  void On(const Adopted&);
  void On(const ValidationDone&);
  void On(const CommandFailed&);

  // ---- saving.cc: saved states ----
  void On(const StateCopied&);
  void On(const StateSaved&);
  bool StartSave();
  bool SaveDue(Tier tier);
  void Save(Tier tier);
  int64_t PeerEverySteps() const;
  int64_t ResumeSave() const;
  void Resumed(const Reconfigured& event);
  void AdoptResumed(const Adopted& event);

  Command Finish();
  void Diverged();
  void KeepUnpushedTokens();
  void CountStep(const StepDone& step);
  void OnFailure(Command command);
  void Skipped(const StepDone& step);
  void CaptureFailed();
  void RetryLater(const std::string& reason);
  void GiveUp(const std::string& reason);
  void PlanGivenUp();
  // Its pseudo-gradient is being made, perhaps during steps.
  bool Capturing() const { return in_flight_ && !in_flight_->captured; }
  // A plan that may wait does, since members are sources of what was captured under the old plan.
  bool AwaitsDelta() const { return order_->at_step_end && Capturing(); }
  void DropLocalProgress();

  // ---- exchange.cc: leases, pushes and pulls ----
  void OnMessage(const LeaseGrant&);
  void OnMessage(const PushGrant&);
  void OnMessage(const FillShards&);
  void On(const PushShardDone&);
  const ShardPlacement* FindPlacement(const GrantedPush& part) const;
  void PushFailed(ShardId shard, const std::string& reason);
  std::string PushTrouble() const;
  void On(const PullDone&);
  void On(const PullFailed&);
  Encoding SelectEncoding(const InFlight& flight) const;
  bool Decided() const;
  std::optional<Version> PullTarget() const;
  bool IsWarmingUpAgain() const;
  bool NeedsAllLayers() const;
  bool NeedsMoments(Version version) const;
  bool AwaitsDelay() const;
  std::vector<ShardPlacement> SelectPushed(Version version,
                                           const std::vector<int64_t>& expert_tokens) const;
  void PlanLeases();
  void PlanPushes();
  void PlanPull();

  // ---- plan.cc ----
  void Plan();
  void PlanWork();
  void PlanLink();
  bool PlanShutdown();
  void PlanPrepare();
  void PlanTrainer();
  void PlanValidationResult();
  bool StartAdopt();
  bool StartValidate();
  bool StartTask();
  bool StartCapture();
  void StartStep();
  IslandProgress Progress() const;

  // ---- helpers ----
  void Emit(Action action) { out_.list.push_back(std::move(action)); }
  void Log(const std::string& text);
  void LogOnce(const std::string& text);
  void Start(Command command, Action action);
  // True when `at` has come; otherwise schedules a Tick then.
  bool Due(Instant at);
  const JobSpec& spec() const { return order_->spec; }
  int64_t batch() const;            // sequences of a step from base_version_
  int64_t round_sequences() const;  // of one round
  int64_t round_steps() const;
  ContributionId NextContribution() const;

  const Identity identity_;
  Instant now_;
  Actions out_;

  Session session_;
  Preparation preparation_;
  Following following_;
  Shutdown shutdown_;
  Counters counters_;
  std::set<JobId> held_;  // jobs of which a checkpoint may be on the disk
  // Measured by this process: reported again to every coordinator, which may have forgotten it.
  std::map<NodeId, LinkProfile> links_;
  std::string measuring_;

  // The trainer.
  Command command_ = Command::kNone;
  bool discard_ = false;      // what the outstanding command does is not wanted any more
  bool interrupted_ = false;  // the outstanding command has been interrupted
  PlanName configured_;       // that the trainer is set up for; none after a failure
  PlanName configuring_;      // the outstanding Reconfigure's
  PlanName drained_;          // nothing of the plan before it goes on any more
  std::string trainer_trouble_;
  Instant trainer_again_at_;
  Duration trainer_retry_{};               // after which that is
  int trainer_failures_ = 0;               // since the newest step
  std::string trainer_failure_;            // the reason of the newest of these
  int not_finite_tries_ = 0;               // since the newest contribution
  GradientNorms norms_;                    // of steps that were not skipped
  double norm_limit_ = 0;                  // of the outstanding TrainStep
  int skipped_in_a_row_ = 0;               // sets of data, up to the newest
  bool newest_skipped_ = false;            // the newest step was
  uint64_t skipped_steps_ = 0;             // of this job
  std::vector<PositionRange> not_finite_;  // data that was not, since the newest contribution
  std::optional<JobRefused> given_up_;     // sent to the coordinator until it orders a stop
  Instant give_up_at_;
  std::deque<std::string> logged_;  // by LogOnce, newest last
  Instant logged_at_;               // the newest

  // The island. Everything below is meaningless without an order.
  std::shared_ptr<const IslandOrder> order_;  // copies of a core share it
  struct SeenOrder {
    JobId job;
    IslandId island = 0;
    Generation generation = 0;
    int64_t epoch = 0;
    int64_t sequence = 0;
  };
  std::deque<SeenOrder> seen_orders_;  // newest job last, bounded
  std::optional<MemberOrder>
      handover_;                // follow this one as soon as order_'s island is handed over
  Generation taken_over_ = 0;   // newest that was taken over from another worker
  StageLinksSeen stage_links_;  // newest, of configured_
  StageLinkLog stage_link_log_;
  std::vector<DeviceMemoryState> memory_;  // of the island's devices, newest

  // State of the parameters: what they are trained from, and from which version.
  bool adopted_ = false;  // theta is base_version_'s, or trained from it
  Version base_version_ = kNoVersion;
  int64_t tokens_at_base_ = 0;  // committed by all islands
  bool initial_made_ = false;
  bool reset_moments_ = false;  // at the next adoption
  bool diverged_ = false;       // the loss is not a number: wait for the next adoption
  AdoptMode adopting_ = AdoptMode::kReplace;
  Work local_;                           // since base_version_, or since the contribution in flight
  int64_t carried_steps_ = 0;            // of local_: made before base_version_ was adopted
  std::vector<PositionRange> stepping_;  // the outstanding TrainStep's
  bool step_failed_ = false;  // stepping_ failed under a plan: Reconfigured says whether it counts
  LeasedData leased_;
  std::optional<InFlight> in_flight_;
  std::optional<ContributionId> last_pushed_;
  Pull pull_;
  Saving saving_;
  std::optional<ValidationResult> validation_;  // newest
  Instant validation_at_;
};

}  // namespace atl::worker

#endif  // ATOLL_WORKER_CORE_IMPL_H_
