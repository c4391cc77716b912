// Input and output of WorkerCore::Step: plain structs. core.h explains the rules. (Namespace
// atl::worker: other daemons' cores have a Send and a Tick too.)
//
// Two kinds of work are started by actions and reported by events:
//  * Trainer commands (Prepare, Reconfigure, MakeInitialWeights, TrainStep, CaptureDelta,
//    AdoptPulled, Validate, SaveState, Handover): the core has at most ONE outstanding,
//    and every one ends in exactly one event, its own or CommandFailed; Reconfigure reports Drained
//    before. After DeltaCaptured the pseudo-gradient is made in parallel to later commands;
//    DeltaReady reports its end, once. ReleaseJob goes to the same queue, takes effect there in
//    order, and does not count as outstanding. InterruptStep, Follow and Unfollow take effect at
//    once.
//  * Transfers (StartPull, PushShards) run in parallel to the trainer. CancelTransfers ends them
//    all; their events may still come and are identified by pull number and push id.

#ifndef ATOLL_WORKER_CORE_ACTIONS_H_
#define ATOLL_WORKER_CORE_ACTIONS_H_

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "common/element_ranges.h"
#include "common/ids.h"
#include "common/protocol/control.h"
#include "common/time.h"
#include "proto/group.plain.h"

namespace atl::worker {

// Nats a token that the loss counts.
inline double LossPerToken(const Work& work) {
  const int64_t counted = work.tokens - work.masked_tokens;
  return counted > 0 ? work.loss_times_tokens / static_cast<double>(counted) : 0;
}

// ------------------------------------------------------------------------------------ events ----

// The stream to the coordinator is open (nothing is sent on it before this), or broken again.
struct Connected {};
struct ConnectionLost {
  std::string reason;
};

// A message from the coordinator.
struct Received {
  ToWorker message;
};

struct Prepared {
  JobId job;
  JobFacts facts;
  std::vector<DeviceProfile> profiles = {};  // of this worker's devices, where they are wanted
};
struct PrepareFailed {
  JobId job;
  std::string reason;
};
// Reconfigure, before its end, reports once that no member works under the old plan any more: all
// have answered the newest step, or it has been abandoned everywhere.
struct Drained {
  Generation generation = 0;
  int64_t plan_number = 0;  // of the plan that is being set up
};
// The island is set up for a plan. `kept`: its parameters and moments are exactly those before the
// newest trainer command that failed, or (`step_taken`) those after it, a TrainStep that every
// device had taken when it failed; or nothing had failed, and they are what they were. Otherwise
// something is lost, and nothing of the state counts any more.
struct Reconfigured {
  int64_t plan_number = 0;
  bool kept = false;
  bool step_taken = false;
  std::string reason;  // of a loss, and how the state moved: human-readable
  // The previous leader's knowledge, where the command requested it; kept and step_taken then speak
  // of its newest command.
  std::optional<Leadership> taken_over = std::nullopt;
  int64_t steps_replayed = 0;  // on the way there from a saved state
  bool resumed = false;        // the state is that of Reconfigure::resume, and of `beyond`
  bool base_lost = false;      // some of theta_base is nowhere, the rest is kept
  // Some of the pseudo-gradient that is being pushed is nowhere: what is not staged of it never is.
  bool push_lost = false;
  std::vector<LoggedStep> beyond = {};
};
// Reports that what the leader knows waits to be fetched by its successor.
struct HandedOver {};
struct InitialWeightsMade {};
struct StepDone {
  int64_t tokens = 0;
  double loss = 0;                          // nats a token, mean over the step
  double seconds = 0;                       // the whole step, emulated slowdown included
  bool overlapped = false;                  // a push or pull was going on
  int64_t masked_tokens = 0;                // of `tokens`, that the loss does not count
  double gradient_norm = 0;                 // before clipping; 0: not known
  bool skipped = false;                     // it changed nothing (TrainStep::norm_limit)
  double router_balance = 0, router_z = 0;  // see IslandProgress
  std::vector<double> router_losses = {};   // likewise
  // By mixture and expert; empty: the model is none, or they are not known.
  std::vector<int64_t> expert_tokens = {};
};
// Adds tokens by expert to those of other steps.
inline void AddTokens(const std::vector<int64_t>& added, std::vector<int64_t>* tokens) {
  tokens->resize(std::max(tokens->size(), added.size()));
  for (size_t i = 0; i < added.size(); ++i) (*tokens)[i] += added[i];
}
// Counts tokens of steps that are not known as those around: `all` for each that is `known`.
inline void ScaleTokens(int64_t known, int64_t all, std::vector<int64_t>* tokens) {
  if (known <= 0 || known == all) return;
  const double factor = static_cast<double>(all) / static_cast<double>(known);
  for (int64_t& n : *tokens) {
    n = static_cast<int64_t>(std::ceil(static_cast<double>(n) * factor));
  }
}
struct DeltaCaptured {
  ContributionId contribution;
};
// The pseudo-gradient can be pushed; or it could not be made, and then it is as if it had not been
// captured.
struct DeltaReady {
  ContributionId contribution;
  bool ok = true;
  std::string reason;
  std::vector<PartDigest> digests = {};  // where the command wants them: of all, in order
};
struct Adopted {
  Version version = kNoVersion;
  int64_t masked_tokens = 0;  // of AdoptPulled::trained
};
struct ValidationDone {
  Version version = kNoVersion;
  double loss = 0;
  int64_t tokens = 0;
  double accuracy = 0;                    // of images
  std::vector<ValidationLoss> sets = {};  // of data.validation
  std::optional<TaskScore> score = {};    // of Validate::evaluation: then there is nothing else
};
// The outstanding trainer command failed (unreadable data, no memory, a failed member). It may have
// changed something on some devices: the core sets the island up again, and Reconfigured reports
// what became of its state.
struct CommandFailed {
  std::string reason;
  bool permanent = false;  // it would fail again, by what the job's files hold
};

// The keepers of what is saved in memory: no member can under this plan; every element has another
// owner, which goes on with it, so that a later save is of use only when its base is another; or
// copies are in flight.
enum class Kept { kNot, kByOwners, kCopied };
// SaveState has ended: the next command may change the state.
struct StateCopied {
  Kept kept = Kept::kNot;
};
// A state is whole in a tier; or, if it has no units, it could not be saved there.
struct StateSaved {
  SavedState state;
  std::string trouble;
  Tier tier = Tier::kMemory;
};

// This worker follows: what it serves now.
struct FollowerState {
  int64_t plan_number = 0;  // 0: none yet
  std::string activity;
};
// This worker leads: how messages travel between the island's devices, and why a new plan would
// help ("link w1/0 > w2/0 saturated"; empty: it would not).
struct StageLinksSeen {
  int64_t plan_number = 0;
  std::vector<StageLinkState> stage_links;
  std::string plan_wanted;
};

// Reports the memory of the island's devices, also of an island that is one worker alone.
struct MemorySeen {
  std::vector<DeviceMemoryState> devices;
};

// A measurement of this worker's devices and links, and how far it is: for display. Empty: nothing.
struct Measuring {
  std::string what;
};

// A chunk of the layers that this worker holds has reached another member.
struct TransferDue {};

struct ShutdownRequested {
  std::string reason;
  // The time that is left; none: as long as it takes others to get what this worker holds.
  std::optional<Duration> within = std::nullopt;
};
// The deadline of the last Actions has come.
struct Tick {};

using Event =
    std::variant<Connected, ConnectionLost, Received, Prepared, PrepareFailed, Drained,
                 Reconfigured, FollowerState, StageLinksSeen, MemorySeen, InitialWeightsMade,
                 StepDone, DeltaCaptured, DeltaReady, Adopted, ValidationDone, CommandFailed,
                 StateCopied, StateSaved, PushShardDone, PullDone, PullFailed, LinksMeasured,
                 StepTraced, HandedOver, Measuring, TransferDue, ShutdownRequested, Tick>;

// ----------------------------------------------------------------------------------- actions ----

// Put the message on the stream; it may be lost with the stream.
struct Send {
  WorkerMessage message;
};

// Open the job's model and data (forgetting any other job's): Prepared or PrepareFailed. The
// parameters are undefined afterwards, the moments zero.
struct Prepare {
  JobId job;
  JobSpec spec;
};
// Lay the island out by this plan, with whatever of its parameters and moments its members hold, in
// memory or in saves: Reconfigured. The plan is valid for the job; number 0: all on this worker's
// first device. Also given again, with the same plan, after a command has failed. No other command
// is given between Prepared and the first of these.
struct Reconfigure {
  JobId job;
  IslandId island = 0;
  Generation generation = 0;
  IslandPlan plan;
  // This member of the plan has led until now in this generation: fetch its control state. Empty:
  // none.
  NodeId take_over_from = {};
  std::vector<ShardPlacement> shards = {};  // of the job
  // Leave the state of this save, or a later one by steps on data in `leased`; 0: the newest that
  // there is.
  int64_t resume = 0;
  std::vector<PositionRange> leased = {};
  // That is pulled next, unless a save is resumed. kNoVersion: none yet, or the next one, which is
  // made of the steps that the devices have taken.
  Version committed = kNoVersion;
  // That the members are to keep, by what this worker has done (`since` is not set); what is not
  // there is reported as lost. Where it takes over, the leader before says it.
  OuterTag outer = {};
};
// theta <- the initial weights: InitialWeightsMade.
struct MakeInitialWeights {};
// One optimizer step on the sequences at these positions: StepDone. Never empty.
struct TrainStep {
  std::vector<PositionRange> ranges;
  double learning_rate = 0;
  double norm_limit = 0;  // skipped, if the gradient's norm is larger or not finite; 0: no limit
  std::vector<PositionRange> ahead = {};  // of pairs: that the next steps will be on
};
// The way to adopt, with b = outer.fragment_blend. Elements that were not pulled do not change.
enum class AdoptMode {
  kReplace,  // theta <- theta_v, theta_base <- theta_v
  kCarry,    // theta <- theta + b * (theta_v - theta_push), theta_base <- theta_v; theta_push is
             // theta_base for layers of which nothing was captured since the last Adopted
  kKeep,     // theta and moments stay, theta_base <- theta_v
};
// Adopted, of what the last StartPull brought.
struct AdoptPulled {
  Version version = kNoVersion;
  AdoptMode mode = AdoptMode::kReplace;
  bool reset_moments = false;  // forget the optimizer's moments
  // The rounding error of quantised pushes is still owed to the model. Otherwise it is forgotten.
  // core/README.md has the cases.
  bool keep_residual = false;
  std::vector<PositionRange> trained = {};  // with kKeep: what theta was trained on since theta_v
  std::vector<ShardPlacement> shards = {};  // that were pulled; empty: all
  // The averaged moments that were pulled become the optimizer's, which then has made so many steps
  // at least. Never with kKeep.
  bool moments = false;
  int64_t optimizer_steps = 0;
};
// Returns which of these elements of a layer none of the shards has; no shards stand for all.
inline std::vector<ElementRange> ListUnconcerned(const std::vector<ShardPlacement>& shards,
                                                 int32_t layer, ElementRange range) {
  if (shards.empty()) return {};
  ElementRanges has;
  for (const ShardPlacement& shard : shards) {
    if (shard.layer == layer) has.Add({shard.begin, shard.begin + shard.elements});
  }
  return has.Missing(range);
}
// Returns whether these shards, which may stand for all by being none, are of the layer.
inline bool Concern(const std::vector<ShardPlacement>& shards, int32_t layer) {
  return shards.empty() ||
         std::any_of(shards.begin(), shards.end(),
                     [&](const ShardPlacement& shard) { return shard.layer == layer; });
}
// Loss of theta_base over schedule.validation_sequences, or its score in this task, an index of
// spec.evaluation: ValidationDone.
struct Validate {
  Version version = kNoVersion;
  std::optional<int32_t> evaluation = std::nullopt;
};
// Save the island's state as it is now with its members: StateCopied, and later StateSaved.
struct SaveState {
  LocalCheckpoint about;  // its number is the trainer's to choose
  Tier tier = Tier::kMemory;
};
// Keep what the leader knows for its successor, until the job is released or another one
// prepared: HandedOver. Never fails.
struct Handover {
  JobId job;
  Leadership leadership;
};
// End what the island's devices do together, or what reads a job's files: the outstanding command,
// if it is one of these, ends soon, in its own event if it was too late and else in CommandFailed
// (Prepare: PrepareFailed).
struct InterruptStep {
  std::string reason;
};
// Serve the leader of this order's plan, instead of what was served before: FollowerState, now
// and whenever it changes. The job is prepared, the plan valid.
struct Follow {
  MemberOrder order;
};
struct Unfollow {
  std::string reason;
};
// Forget the job: memory is freed, its checkpoint deleted if `removed`.
struct ReleaseJob {
  JobId job;
  bool removed = false;
};

inline PushId MakePushId(const PushShards& push, const ShardPart& part) {
  const ContributionId& c = push.contribution;
  return {push.job,       c.island,   c.generation,    c.incarnation,
          c.base_version, part.shard, part.part_begin, part.part_elements};
}
struct CancelTransfers {};

// Make durable to which coordinator this worker belongs; before the next message is sent.
struct RememberCluster {
  ClusterMark mark;
};

// A note for the daemon's own log.
struct Note {
  std::string text;
};

// End the process.
struct Stop {
  int exit_code = 0;
  std::string reason;
};

// Let others reach this worker through these relays, and through no others.
struct UseRelays {
  std::vector<RelayPlace> relays;
};

// (MeasureLinks is the coordinator's: the peer link is this request's until Reconfigure or Follow;
// LinksMeasured if this worker is the measurer. TraceNextStep is, too: StepTraced, when a step of
// the island has been recorded or has failed.)
using Action = std::variant<Send, Prepare, Reconfigure, MakeInitialWeights, TrainStep, CaptureDelta,
                            AdoptPulled, Validate, Handover, SaveState, InterruptStep, Follow,
                            Unfollow, ReleaseJob, StartPull, PushShards, CancelTransfers,
                            MeasureLinks, TraceNextStep, RememberCluster, UseRelays, Note, Stop>;

// Actions to be carried out in order. `deadline` replaces the one before it: send Tick then.
struct Actions {
  std::vector<Action> list;
  Instant deadline = kNever;
};

}  // namespace atl::worker

#endif  // ATOLL_WORKER_CORE_ACTIONS_H_
