// What the coordinator stores: plain structs, each under one key. The whole set of records gives
// back the whole durable state (CoordinatorCore::Recover).
//
// The shell keeps them in any store that can put and delete by key and apply many of both in one
// transaction. Instants are not stored: they mean nothing in another process. Who wants wall time
// (of EventRecords, say) adds it when it stores them.

#ifndef ATOLL_COORDINATOR_CORE_RECORDS_H_
#define ATOLL_COORDINATOR_CORE_RECORDS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "common/ids.h"
#include "common/protocol/control.h"
#include "common/protocol/job_spec.h"
#include "coordinator/core/penalty.h"

namespace atl {

// The newest epoch of the coordinator, its cluster, and the number of the newest change of a record
// (log lines are none). The number has its process's epoch in the upper 32 bits, so that it grows
// over processes too. Key: "epoch".
struct EpochRecord {
  int64_t epoch = 0;
  ClusterId cluster;
  int64_t sequence = 0;
  bool restored = false;  // on purpose, from a backup: no process has worked with it yet

  bool operator==(const EpochRecord&) const = default;
};

// For a store that is known to lack changes (it is restored from a backup, or begun anew under the
// old cluster's id): an epoch and a sequence beyond all that members can have seen.
EpochRecord AfterLoss(EpochRecord known, int64_t unix_time_ms);

enum class MemberKind { kWorker, kServer };

// The highest incarnation seen of a name, and where it stands. Key: kind, name.
struct MemberRecord {
  MemberKind kind = MemberKind::kWorker;
  NodeId name;
  Incarnation incarnation = 0;
  // Of a worker whose operator names no site: found by measuring, and how; empty: not yet.
  std::string site;
  std::string site_source;
  bool draining = false;  // is to hold no shards; to have no work

  bool operator==(const MemberRecord&) const = default;
};

// A place of a job that a server fills: a shard, or the copy of one, counted after all shards (see
// copies.h).
using SlotId = ShardId;

// What of a slot is to move from its server to this one (a copy that there is not: from the shard's
// holder). fill: what it had is lost, and an island pushes its parameters.
struct ShardMove {
  SlotId shard = 0;
  NodeId to;
  bool fill = false;

  bool operator==(const ShardMove&) const = default;
};

// Holds no shard of the job from this placement on, and has yet to say that it has deleted what it
// had.
struct ReleasedServer {
  NodeId server;
  int64_t placement = 0;

  bool operator==(const ReleasedServer&) const = default;
};

// The newest time that a shard was lost and filled from an island: its outer momentum began at zero
// at this version.
struct RefilledShard {
  ShardId shard = 0;
  Version version = 0;
  int64_t age = 0;  // its parameters are those of so many versions before

  bool operator==(const RefilledShard&) const = default;
};

// The data that the workers of one site have found, where sites hold different data.
struct SiteFacts {
  std::string site;
  int64_t train_sequences = 0;
  int64_t validation_sequences = 0;
  uint64_t data_digest = 0;

  bool operator==(const SiteFacts&) const = default;
};

// Of the job of a site's servers: how it takes part in the job above, spec.outer.contributes_to;
// see site_jobs.h.
struct SiteJob {
  std::string site;
  IslandId island = -1;           // of the job above
  Generation generation = 0;      // of that island, all along
  Version base = kNoVersion;      // of the job above, newest adopted
  Version based_at = kNoVersion;  // own version that adopted it
  // Newest, of the job above, until a version that follows it is adopted.
  std::optional<ContributionId> contribution;
  Version contributed_at = kNoVersion;  // own version that made the newest

  bool operator==(const SiteJob&) const = default;
};

inline constexpr int kValidationLossesMax = kValidationSetsMax + kDataSitesMax;

// What changes rarely of a job. Key: job.
struct JobRecord {
  JobId job;
  int64_t number = 0;  // of submission, from 1
  JobSpec spec;
  std::optional<JobFacts> facts;       // once agreed
  std::vector<ShardPlacement> shards;  // once placed; index = ShardId
  // Hidden from users. Of the job's records this one and its progress stay, and of its shards those
  // whose server has not reported their deletion yet.
  bool removed = false;
  // Who shares an island where measurements decide it, and why; an empty reason: not decided, or
  // the specification says it.
  IslandScope extent = IslandScope::kWorker;
  std::string grouping;
  int64_t placement = 0;  // counts the changes of `shards`
  std::vector<ShardMove> moves;
  std::string moves_reason;  // why these, or those before
  std::vector<ReleasedServer> releasing;
  std::vector<RefilledShard> refilled;  // one a shard
  // Once placed, if the job keeps two of each shard: whose server holds the second one; no server:
  // none does now. Index = ShardId.
  std::vector<ShardPlacement> copies = {};
  std::vector<SiteFacts> site_facts = {};  // of sites whose workers have opened their data
  // Of the moves that fill: theta_base of version fill_base fills them at fill_version, to which
  // rounds without contributions lead. fill_version 0: the committed version, and its theta_base.
  Version fill_version = 0;
  Version fill_base = 0;
  // Empty, or which rounds' updates some shards lack since they were filled (newest).
  std::string lost_update;
  std::optional<SiteJob> site = {};  // of a site's servers

  bool operator==(const JobRecord&) const = default;
};

enum class JobState {
  kQueued,
  kPreparing,     // workers open the model and data
  kInitializing,  // shards are placed; one island makes version 0
  kRunning,
  kPaused,
  kFinishing,  // all tokens are committed; last validation, last snapshots
  kDone,
  kFailed,
  kCancelled,
};

// Where a job stands, besides its rounds.
struct JobProgress {
  JobId job;
  JobState state = JobState::kQueued;
  std::string reason;              // why it is in this state, human-readable
  Generation plan_generation = 0;  // of the newest plan; grows with every change of an island
  IslandId initializer = -1;       // island that makes version 0; -1: none chosen
  Version validate_version = kNoVersion;  // to be validated; kNoVersion: nothing to do
  // By these islands, which have yet to answer: one, or one of each site that has data of its own.
  std::vector<IslandId> validators = {};
  Version validated_version = kNoVersion;  // newest result
  double validation_loss = 0;              // its loss, nats a token
  double validation_accuracy = 0;          // of images, share classified right; 0: unknown
  double first_validation_loss = 0;        // the one of version 0; 0: none yet
  bool validated_final = false;  // state finishing: the last validation is done or timed out
  // Not empty: a member has seen newer changes than the store has, which may lack some of this job:
  // nothing is decided until it is adopted. Who, and what is missing.
  std::string outdated;
  // The store comes from a backup: nothing is decided until it is rebuilt from its servers.
  bool restored = false;
  std::vector<ValidationLoss> validation_sets = {};  // newest of each named set or site, by name

  bool operator==(const JobProgress&) const = default;
};

// How far the rounds of a job are.
struct RoundsProgress {
  Version version = kNoVersion;  // committed: every parameter server has applied it
  int64_t tokens_committed = 0;  // up to `version`
  int64_t round = 0;             // decisions made, void ones too
  // Of a site's job, since the version that made its newest contribution: rounds, and of what they
  // accepted the steps of all islands, the tokens that the loss does not count, and the loss times
  // the tokens that it does.
  int64_t rounds_since = 0;
  int64_t steps_since = 0;
  int64_t masked_since = 0;
  double loss_since = 0;

  bool operator==(const RoundsProgress&) const = default;
};

// Key: job.
struct ProgressRecord : JobProgress, RoundsProgress {
  bool operator==(const ProgressRecord&) const = default;
};

// One island of a job. Key: job, island.
struct IslandRecord {
  JobId job;
  IslandId island = 0;
  Generation generation = 0;
  NodeId worker;                // whose it is; stays while vacant, for its return
  Incarnation incarnation = 0;  // of that worker; 0: vacant
  bool ready = false;           // has held a committed version in this generation
  // Of this generation's beginning: go on from this saved state.
  std::optional<LocalCheckpoint> resume = std::nullopt;
  std::vector<SavedState> saved = {};  // whole ones, newest first: at most kSavedStatesMax
  int64_t steps_this_round = 0;
  std::string reason;                       // why it is as it is: "joined", "evicted: ..."
  Version last_push_base = kNoVersion;      // newest base version it requested to push from
  int64_t lease_request = -1;               // newest LeaseRequest answered with ranges
  std::vector<PositionRange> lease_ranges;  // that answer, to be repeated
  std::optional<ContributionOutcome> outcome;
  int64_t rounds_accepted = 0;
  int64_t rounds_rejected = 0;
  int64_t tokens_committed = 0;  // of this island
  int64_t evictions = 0;
  // The other workers, in the order in which they joined; those that its plan names follow
  // `worker`.
  std::vector<IslandMember> followers;
  int64_t plan_number = 0;  // of the newest plan ever made for it; 0: it needs none
  Incarnation author = 0;   // in the names of this generation's contributions: its first leader's
  NodeId takes_over_from;   // `worker` has yet to take over from this one, in the same generation
  // Finished and replayed steps of former leaders and of dropped contributions, and interrupted
  // steps of former leaders.
  int64_t steps_redone = 0;
  int64_t steps_interrupted = 0;
  // Not empty: no workers', but the one that this site's parameter servers take part as; `worker`
  // is empty then.
  std::string site = {};

  bool operator==(const IslandRecord&) const = default;
};

// The plan in force of an island that has one. Key: job, island.
struct PlanRecord {
  JobId job;
  IslandId island = 0;
  IslandPlan plan;

  bool operator==(const PlanRecord&) const = default;
};

// A contribution that its island requested to push and that was granted. It goes when it is
// decided. Key: job, contribution.
struct ContributionRecord {
  JobId job;
  ContributionId contribution;
  int64_t inner_steps = 0;
  int64_t tokens = 0;
  double train_loss = 0;
  std::vector<PositionRange> consumed;
  bool dropped = false;       // no round will use it; kept until servers have surely forgotten it
  std::string reason;         // of the drop
  int64_t masked_tokens = 0;  // of `tokens`, that the loss does not count

  bool operator==(const ContributionRecord&) const = default;
};

struct DecisionParticipant {
  ContributionId contribution;
  NodeId worker;
  int64_t inner_steps = 0;
  int64_t tokens = 0;
  double train_loss = 0;
  double norm = 0;   // global L2 norm of the pseudo-gradient; -1: not finite
  double score = 0;  // see penalty.h
  double limit = 0;
  double clip = 1;
  double weight = 0;  // in CommitRound; 0 if rejected
  bool accepted = false;
  std::string reason;

  bool operator==(const DecisionParticipant&) const = default;
};

// One decided round. Key: job, round. The newest Options::decisions_kept are kept, and older ones
// as long as a parameter server may need them to catch up.
struct DecisionRecord {
  JobId job;
  int64_t round = 0;
  Version version = kNoVersion;  // kNoVersion: void, everything was rejected
  Version previous = kNoVersion;
  std::vector<DecisionParticipant> participants;
  std::vector<ContributionId> dropped;  // as in CommitRound
  std::vector<double> gram;             // k-by-k sums over all servers and layers, row by row;
                                        // -1 in place of what is not finite
  double norm = 0;                      // of the weighted average before clip_scale
  double clip_scale = 1;
  int64_t tokens = 0;                  // of the accepted
  int64_t tokens_committed_after = 0;  // of the job
  IslandId opened_by = -1;             // whose complete contribution opened the window
  std::string closed_because;
  RoundStep step = {};
  double rho = 0, gain = 0, cosine = 0, staleness = 0;  // see RoundHealth in merge.h

  bool operator==(const DecisionRecord&) const = default;
};

// Key: job, island.
struct PenaltyRecord {
  JobId job;
  IslandId island = 0;
  PenaltyState state;

  bool operator==(const PenaltyRecord&) const = default;
};

enum class LedgerUse {
  kLeased,     // an island may train on it
  kPushed,     // a contribution under way was trained on it
  kCommitted,  // in the model
};

// An interval of positions; what no record covers is free. Committed neighbours are one interval.
// Key: job, begin.
struct LedgerRecord {
  JobId job;
  PositionRange range;
  LedgerUse use = LedgerUse::kLeased;
  IslandId island = -1;         // leased or pushed: whose
  ContributionId contribution;  // pushed: in which

  bool operator==(const LedgerRecord&) const = default;
};

// A job that a user has removed: a member that comes back with state of it is ordered to delete
// that. The newest kRemovedKept are kept. Key: job.
struct RemovedRecord {
  JobId job;
  int64_t sequence = 0;  // grows

  bool operator==(const RemovedRecord&) const = default;
};

enum class Severity { kInfo, kWarning, kError };

// A line of the log. Never read back by the core: a store may forget old ones. Key: sequence.
struct EventRecord {
  int64_t sequence = 0;  // grows, across restarts too; with gaps
  JobId job;             // empty: the cluster's
  Severity severity = Severity::kInfo;
  std::string text;

  bool operator==(const EventRecord&) const = default;
};

// What running islands have shown of a link (or of the line that it goes over), other than what was
// measured. The core keeps it for the shell (coordinator/measurements/profile_book.h). Key: from,
// to.
struct LinkRecord {
  LinkProfile link;
  int64_t unix_time_ms = 0;  // when they did

  bool operator==(const LinkRecord&) const = default;
};

// Likewise, of a device: times what was measured of this model's layers. Key: device, model.
struct DeviceRecord {
  std::string device;
  uint64_t model_digest = 0;
  double factor = 1;
  int64_t unix_time_ms = 0;

  bool operator==(const DeviceRecord&) const = default;
};

using StoreRecord = std::variant<EpochRecord, MemberRecord, JobRecord, ProgressRecord, IslandRecord,
                                 ContributionRecord, DecisionRecord, PenaltyRecord, LedgerRecord,
                                 EventRecord, PlanRecord, LinkRecord, DeviceRecord, RemovedRecord>;

// Put `record` under its key (replacing what is there), or delete what is under its key. To delete,
// only the fields of the key mean anything.
struct StoreWrite {
  StoreRecord record;
  bool erase = false;
};

// Sorts like the record's kind and key fields; the same for records that replace each other.
// "job/lm-1", "island/lm-1/000002", "ledger/lm-1/0000000000000004096".
std::string KeyOf(const StoreRecord& record);

}  // namespace atl

#endif  // ATOLL_COORDINATOR_CORE_RECORDS_H_
