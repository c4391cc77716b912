// The parameter server as a pure state machine: events in, ordered actions out. Start here.
//
// It holds some shards of each job's global model, stages islands' pushes, and applies the rounds
// that the coordinator has decided (design: "An outer round"). Guarantees:
//  * A push is acknowledged as staged, to its worker and to the coordinator, only after its log
//    record is durable (LogSynced). The same push again changes nothing, also when it has long been
//    applied or dropped.
//  * A committed round is applied once, to exactly the version before it, after its record is
//    durable; RoundApplied follows. So whatever was reported to the coordinator survives any crash.
//  * A pull names a version and gets precisely that one or a refusal. A reply is a lease of an
//    immutable tensor: rounds applied meanwhile go to a copy.
//  * No bytes from outside make it crash or grow without bound (limits below).
//
// Not thread-safe: one thread calls Step. `gate()` alone may be used from others. There is no
// clock, no I/O, no randomness here; arithmetic runs on the pool given, with the same results for
// any number of threads.

#ifndef ATOLL_PARAMSERVER_CORE_CORE_H_
#define ATOLL_PARAMSERVER_CORE_CORE_H_

#include <chrono>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "common/element_ranges.h"
#include "common/ids.h"
#include "common/net/tensor/tensor_types.h"
#include "common/protocol/control.h"
#include "common/thread_pool.h"
#include "common/time.h"
#include "paramserver/core/job_state.h"
#include "paramserver/core/push_gate.h"
#include "paramserver/core/records.h"

namespace atl::ps {

// Names a request of the tensor link that waits for its answer.
using Token = uint64_t;

// ----------------------------------------------------------------------------------- events ----

struct FromCoordinator {
  ToServer message;  // ignored unless it is for this server, incarnation and epoch
};

// A whole push of so many elements, its checksums verified. payload: they, as encoded.
struct PushArrived {
  PushId id;
  Encoding encoding = Encoding::kFloat32;
  int64_t elements = 0;
  SharedBytes payload;
  Token token = 0;
};

struct PullArrived {
  JobId job;
  Version version = kNoVersion;  // kNoVersion: the newest
  ShardId shard = 0;
  Token token = 0;
  int64_t begin = 0;
  int64_t elements = 0;        // 0: the whole shard
  int32_t slot = kPullServed;  // as in PullRequest
};

// The end of a FetchPart. payload: fp32, its checksums verified.
struct PartFetched {
  Token token = 0;
  absl::Status status;
  SharedBytes payload;
};

// The end of a ForwardPush. OK: the other server has it, durably.
struct PushForwarded {
  Token token = 0;
  absl::Status status;
};

// All records of the job up to `sequence` are durable.
struct LogSynced {
  JobId job;
  LogSequence sequence = 0;
};

// The storage cannot write the job's log now (disk full). It keeps the records and tries again by
// itself; the next LogSynced of the job reports that it succeeded.
struct LogFailed {
  JobId job;
  std::string reason;
};

struct SnapshotDone {
  JobId job;
  Version version = kNoVersion;
  absl::Status status;
};

// Nothing of the job is on the disk any more.
struct JobErased {
  JobId job;
};

// The stream to the coordinator is open; the core sends its hello. Down: sending is useless until
// then.
struct ConnectionUp {};
struct ConnectionDown {};

// It cannot be deleted now. The storage tries again by itself, and reports it once for each reason.
struct EraseFailed {
  JobId job;
  std::string reason;
};

// Time passed, or a deadline came. Counters of the shell, for heartbeats.
struct Tick {
  int64_t log_bytes = 0;
  int64_t received_bytes = 0;
  int64_t sent_bytes = 0;
};

using Event = std::variant<FromCoordinator, PushArrived, PullArrived, LogSynced, LogFailed,
                           SnapshotDone, JobErased, EraseFailed, ConnectionUp, ConnectionDown,
                           PartFetched, PushForwarded, Tick>;

// ---------------------------------------------------------------------------------- actions ----

// Sequences of one job are consecutive. Answer with LogSynced when durable; one sync may cover
// many.
struct AppendLog {
  JobId job;
  LogSequence sequence = 0;
  LogRecord record;
};

struct AcknowledgePush {
  Token token = 0;
  PushStatus status = PushStatus::kRefused;
  std::string reason;
};

// `values` stay unchanged while `owner` exists.
struct ReplyPull {
  Token token = 0;
  Version version = kNoVersion;
  std::span<const float> values;
  std::shared_ptr<const void> owner;
};

struct RefusePull {
  Token token = 0;
  PullRefusal refusal = PullRefusal::kUnknown;
  Version current = kNoVersion;
  std::string reason;
};

// Pull these elements of a shard, of exactly this version, from another server; answer with
// PartFetched.
struct FetchPart {
  Token token = 0;
  JobId job;
  Version version = kNoVersion;
  ShardId shard = 0;
  int32_t slot = 0;  // as in PullArrived
  ElementRange range;
  std::string endpoint;
  std::string public_key;
};

// Push this to the server that has the other copy of its shard, or to one of the job above; answer
// with PushForwarded.
struct ForwardPush {
  Token token = 0;
  PushId id;
  Encoding encoding = Encoding::kFloat32;
  int64_t elements = 0;
  SharedBytes payload;
  std::string endpoint;
  std::string public_key;
};

// Write it once all records up to snapshot->last_sequence are durable; keep the snapshot before it;
// answer with SnapshotDone. At most one a job is requested at a time.
struct WriteSnapshot {
  std::shared_ptr<const Snapshot> snapshot;
};

// Records before `keep_from` will not be needed again, not even by the previous snapshot.
struct TruncateLog {
  JobId job;
  LogSequence keep_from = 0;
};

// Delete the job's log and snapshots, and whatever of it is still to be written; answer with
// JobErased when that is durable. Nothing else of the job follows.
struct EraseJob {
  JobId job;
  bool put_aside = false;  // keep it under another name, where no restart finds it
};

// To be done in the order of the members, and in order within each.
struct Actions {
  std::vector<AppendLog> log;
  std::vector<ServerMessage> to_coordinator;
  std::vector<AcknowledgePush> pushes;
  std::vector<ReplyPull> replies;
  std::vector<RefusePull> refusals;
  std::vector<FetchPart> fetches;
  std::vector<ForwardPush> forwards;
  std::vector<WriteSnapshot> snapshots;
  std::vector<TruncateLog> truncations;
  std::vector<EraseJob> erasures;
  std::optional<ClusterMark> remember;  // make it durable before anything is sent
  std::vector<std::string> notes;       // for the human-readable log, one line each
  std::optional<std::string> stop;      // the coordinator will never serve this daemon: why
  Instant next_deadline = kNever;       // send a Tick then, if nothing happens before
};

// ------------------------------------------------------------------------------------- core ----

struct ServerOptions {
  NodeId name;
  Incarnation incarnation = 0;
  std::string software_version;
  std::string endpoint;  // of the tensor link, as workers reach it
  // For parameters, slots and staged pseudo-gradients together. Copies made for readers come on
  // top: at most as much again as the parameters' own bytes, twice that while a snapshot is
  // written.
  int64_t memory_bytes = 0;
  std::string public_key;  // of the tensor link; empty: plaintext
  ClusterMark mark = {};   // as it was remembered
  std::string site = {};   // as its operator says
  bool site_only = false;  // shards of its site's jobs alone
  // Of tensors and pseudo-gradients, in one Step, about; a shard is never split. A tenth of a
  // second or so.
  int64_t work_elements = int64_t{64} << 20;
  // A log of so many bytes of pushes is never a reason for a snapshot.
  int64_t log_bytes_free = int64_t{64} << 20;
};

class ServerCore {
 public:
  static constexpr size_t kMaxJobs = 256;  // beyond it an assignment gets a ServerFault
  static constexpr int64_t kPartElements = int64_t{4} << 20;  // of a FetchPart
  static constexpr size_t kFetchesAtOnce = 4;
  static constexpr size_t kForwardsAtOnce = 4;  // of a job
  static constexpr size_t kLeftMax = 4096;      // jobs whose removal from here is remembered
  static constexpr Duration kSnapshotRetry = std::chrono::seconds(10);  // after a failed one

  // `recovered`: what was found on disk (JobReplay), in any order. `pool` outlives the core.
  ServerCore(ServerOptions options, std::vector<RecoveredJob> recovered, ThreadPool* pool);

  Actions Step(Instant now, const Event& event);

  // Where the tensor link came to listen. Before the first ConnectionUp.
  void SetEndpoint(std::string endpoint) { options_.endpoint = std::move(endpoint); }

  // Decides for the tensor link before it takes memory for a push. Thread-safe; may outlive the
  // core.
  std::shared_ptr<const PushGate> gate() const { return gate_; }

  // For tests and status pages. kNoVersion for unknown jobs; empty for unknown shards.
  Version version(const JobId& job) const;
  std::vector<float> Parameters(const JobId& job, ShardId shard) const;

 private:
  // A push whose record is not durable yet, and the requests that wait for that.
  struct Pending {
    PushId id;
    std::vector<Token> waiting;
  };
  // Statistics of which some shards are in.
  struct Gathering {
    Version version = kNoVersion;
    JobState::GramSum sum;
  };
  // A durable push of which the coordinator has not shown yet that it knows.
  struct Announced {
    Instant next_send{};
    Duration interval{};
  };
  // The newest contribution to the job above, and what of it is neither there nor in flight.
  struct Contributing {
    PushContribution order;
    Token number = 0;  // of this order
    std::map<ShardId, ShardSource> targets;
    std::deque<GrantedPush> left;
    size_t running = 0;         // in flight
    Instant next_try = kNever;  // after a failed one
    std::string trouble;        // why it failed
  };
  // What the core does with a job, around what the job is (JobState).
  struct Job {
    std::unique_ptr<JobState> state;  // null: found damaged on disk, or being removed
    bool removing = false;            // the storage is at it
    bool put_aside = false;           // likewise, and it begins anew
    int64_t removed_at = 0;           // RemoveJob::placement
    std::string damage;               // not empty: how it was found damaged; it is not served
    std::string log_full;             // not empty: why its log or snapshot cannot be written now
    Instant next_fault = kNever;      // when the fault is reported again

    LogSequence next_sequence = 1;
    std::map<LogSequence, Pending> pending;
    std::map<PushId, Announced> announced;
    Instant next_announcement = kNever;  // not after the first of `announced`

    LogSequence synced = 0;
    std::optional<ReceiveShards> receiving;           // the newest that makes sense now
    size_t received = 0;                              // its shards that were reported
    std::map<LogSequence, std::vector<Token>> fills;  // requests that wait for these records
    Instant next_fetch = kNever;                      // after a failed one

    std::map<ShardId, ForwardTo> forwards;  // other holders of shards that islands push here
    std::set<PushId> to_forward;            // durable here; round-robin, from the one after
    PushId forwarded_last;                  // this one on
    Instant next_forward = kNever;          // after a failed one
    std::string forward_trouble;            // why it failed

    std::optional<FetchBase> fetching;  // until it is answered
    Instant next_base = kNever;         // after a failed part of it
    std::string base_trouble;           // why it failed
    std::optional<Contributing> contributing;

    std::optional<CommittedRecord> committing;  // in the log, not yet durable
    LogSequence committing_sequence = 0;
    bool end_after_commit = false;
    bool applying = false;                 // it is durable, and some shards are stepped
    std::optional<Statistics> statistics;  // the last ones, for repeated requests
    std::optional<Gathering> gathering;    // those that are being made

    std::shared_ptr<const Snapshot> snapshot_running;
    Instant next_snapshot_try{};
    Version snapshot_version = kNoVersion;
    LogSequence snapshot_replay_from = 1;
    bool snapshot_ended = false;  // the newest snapshot is the last

    // Of pushes in the log since the newest snapshot was taken, those of a restart's replay left
    // out; and of these, those before the one that is being written.
    int64_t log_bytes = 0, snapshot_log_bytes = 0;
    // When `measured_version` was made: `log_bytes`, and what its round added.
    Version measured_version = kNoVersion;
    int64_t measured_bytes = 0, round_bytes = 0;
  };

  // A FetchPart without an answer yet.
  struct Fetch {
    JobId job;
    int64_t placement = 0;
    Version version = kNoVersion;
    OwnedShard shard;
    ReceivedPart part = ReceivedPart::kParameters;
    ElementRange range;
  };

  // A ForwardPush without an answer yet.
  struct Forwarding {
    PushId id;
    ForwardTo to;
  };

  // A part of a contribution without an answer yet.
  struct ContributedPart {
    JobId job;
    Token number = 0;  // Contributing::number
    GrantedPush push;
  };

  struct Turn;  // one Step: the time and the actions so far

  void On(const FromCoordinator& event, Turn& turn);
  void On(const PushArrived& event, Turn& turn);
  void On(const PullArrived& event, Turn& turn);
  void On(const LogSynced& event, Turn& turn);
  void On(const LogFailed& event, Turn& turn);
  void On(const SnapshotDone& event, Turn& turn);
  void On(const JobErased& event, Turn& turn);
  void On(const EraseFailed& event, Turn& turn);
  void On(const ConnectionUp& event, Turn& turn);
  void On(const ConnectionDown& event, Turn& turn);
  void On(const PartFetched& event, Turn& turn);
  void On(const PushForwarded& event, Turn& turn);
  void On(const Tick& event, Turn& turn);

  void Execute(const Welcome& message, Turn& turn);
  void Execute(const Refused& message, Turn& turn);
  void Execute(const AssignShards& message, Turn& turn);
  void Execute(const FenceIslands& message, Turn& turn);
  void Execute(const CollectStatistics& message, Turn& turn);
  void Execute(const CommitRound& message, Turn& turn);
  void Execute(const DropContributions& message, Turn& turn);
  void Execute(const EndJob& message, Turn& turn);
  void Execute(const RemoveJob& message, Turn& turn);
  // Whether an order of this placement is older than the removal of the job from here.
  bool HasLeft(const JobId& job, int64_t placement) const;
  void Leave(const JobId& job, int64_t placement);
  void Execute(const DescribeJob& message, Turn& turn);
  void Execute(const ReceiveShards& message, Turn& turn);
  void Execute(const FetchBase& message, Turn& turn);
  void Execute(const PushContribution& message, Turn& turn);
  bool IsForThisServer(const ToServer& message, Turn& turn);
  HeldJob Held(const JobId& id, const Job& job) const;

  Job* Usable(const JobId& id);
  LogSequence Append(const JobId& id, Job& job, LogRecord record, Turn& turn);
  absl::Status RoomFor(const AssignShards& assignment) const;
  absl::Status MayReceive(const ReceiveShards& message) const;
  // Parameters, state of optimizers and staged pushes of all jobs.
  int64_t HeldBytes() const;
  bool IsFetched(const Fetch& fetch) const;
  // What `gaps` lack, in parts, as far as kFetchesAtOnce allows.
  void FetchGaps(Fetch fetch, const std::vector<ElementRange>& gaps, const JobId& from_job,
                 const ShardSource& source, Turn& turn);
  bool Receives(const Job& job) const;
  void FetchMissing(const JobId& id, Job& job, const ShardSource& source, Turn& turn);
  void PutAside(const JobId& id, Job& job, Turn& turn);
  void Receive(const JobId& id, Job& job, Turn& turn);
  void TakeReceived(const Fetch& fetch, const PartFetched& event, Turn& turn);
  void TakeFill(const PushArrived& event, Job& job, Turn& turn);
  void FetchBaseParts(const JobId& id, Job& job, Turn& turn);
  absl::Status RoomForBase(const Job& job) const;
  void RetryBase(const JobId& id, Job& job, const std::string& why, Turn& turn);
  void TakeBase(const Fetch& fetch, const PartFetched& event, Turn& turn);
  static GrantedPush NextPart(const Job& job, Contributing& contributing);
  void PushContributionParts(const JobId& id, Job& job, Turn& turn);
  void OnContributed(const ContributedPart& part, const absl::Status& status, Turn& turn);
  void StagePush(const PushArrived& event, Job& job, Turn& turn);
  void SetForwards(const AssignShards& message, Job& job, Turn& turn);
  void ForwardStaged(Job& job, Turn& turn);
  void Announce(const PushId& id, Job& job, Turn& turn);
  void Known(const std::vector<ContributionId>& contributions, Job& job);
  void Acknowledge(const std::vector<Token>& tokens, PushStatus status, const std::string& reason,
                   Turn& turn);
  // Arithmetic, a part at a time, so that heartbeats and pushes do not wait for a whole round.
  bool HasWork(const Job& job) const { return job.applying || job.gathering.has_value(); }
  bool HasWork() const;
  void Work(Turn& turn);
  void ApplyPart(const JobId& id, Job& job, Turn& turn);
  void GatherPart(const JobId& id, Job& job, Turn& turn);
  void FinishCommit(const JobId& id, Job& job, Turn& turn);
  void End(const JobId& id, Job& job, Turn& turn);
  bool IsLogLong(Job& job) const;
  void MaybeSnapshot(Job& job, Turn& turn);
  void UpdateRoom();
  void Say(ServerMessage message, Turn& turn);
  void Fault(const JobId& id, const std::string& reason, Turn& turn);
  void SendHello(Turn& turn);
  void SendHeartbeat(Turn& turn);
  void SendDue(Turn& turn);
  Instant NextDeadline() const;

  ServerOptions options_;
  ThreadPool* const pool_;
  const std::shared_ptr<PushGate> gate_;
  std::map<JobId, Job> jobs_;
  // Jobs that were removed here, with the placement of the removal; also those removed for good.
  // The newest orders may overtake older ones after a reconnect.
  std::deque<JobId> left_order_;  // of `left_`, the first to leave first
  std::map<JobId, int64_t> left_;

  std::map<Token, Fetch> fetches_;
  std::map<Token, Forwarding> forwarding_;
  std::map<Token, ContributedPart> contributed_;
  Token next_transfer_ = 1;
  JobId worked_last_;  // whose arithmetic ran last

  ClusterMark mark_;        // of the coordinator that it follows
  ClusterMark remembered_;  // as it is on the disk
  Instant remember_at_ = kNever;
  std::string refused_;  // what was noted of a coordinator of another cluster
  bool connected_ = false;
  bool welcomed_ = false;
  Duration heartbeat_interval_ = kHeartbeatInterval;
  Instant next_hello_ = kNever;
  Instant next_heartbeat_ = kNever;
  Tick counters_;
};

}  // namespace atl::ps

#endif  // ATOLL_PARAMSERVER_CORE_CORE_H_
