// The server's work with one job, around the job's state (JobState): records on their way to the
// disk, transfers, the round that is being applied, snapshots. Private to core.h.

#ifndef ATOLL_PARAMSERVER_CORE_JOB_DRIVER_H_
#define ATOLL_PARAMSERVER_CORE_JOB_DRIVER_H_

#include <algorithm>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <variant>
#include <vector>

#include "common/protocol/mark_file.h"
#include "common/thread_pool.h"
#include "paramserver/core/events.h"
#include "paramserver/core/job_replay.h"
#include "paramserver/core/push_gate.h"

namespace atl::ps {

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
  // The elements of tensors and pseudo-gradients that one Step works on, about; a shard is never
  // split. A tenth of a second or so.
  int64_t work_elements = int64_t{64} << 20;
  // A log of so many bytes of pushes is never a reason for a snapshot.
  int64_t log_bytes_free = int64_t{64} << 20;
  Duration heartbeat_interval_max = std::chrono::minutes(1);  // whatever is requested
  // A snapshot is reported at once, where heartbeats are rare.
  bool reports_snapshots = false;
  std::string relay_address = {}, relay_secret = {};  // where it relays for others; empty: nowhere
  bool relay_own = false;                             // for its own links alone
};

// One Step of the core: its time, and the actions so far.
struct Turn {
  Instant now;
  bool connected = false;  // to the coordinator; what is said without is lost
  Actions actions = {};

  void Say(ServerMessage message) {
    if (connected) actions.to_coordinator.push_back(std::move(message));
  }
  void Note(const JobId& job, absl::string_view text) {
    actions.notes.push_back(absl::StrCat("job ", job, ": ", text));
  }
  void Fault(const JobId& job, const std::string& reason, bool passing = false) {
    Note(job, reason);
    Say(ServerFault{job, reason, passing});
  }
  void Refuse(Token push, std::string reason) {
    actions.pushes.push_back({push, PushStatus::kRefused, std::move(reason)});
  }
};

// When transfers of a kind are tried again after one has failed, and why it did.
struct Retry {
  Instant at = kNever;
  std::string trouble;  // empty: the newest one succeeded

  // Returns whether none is to begin.
  bool Waits(Instant now) {
    if (now >= at) at = kNever;
    return at != kNever;
  }
  // True: not for the reason of the time before.
  bool Fail(Instant now, const std::string& why);
};

// A FetchPart of this job's driver without an answer.
struct Fetch {
  int64_t placement = 0;
  Version version = kNoVersion;
  OwnedShard shard;
  ReceivedPart part = ReceivedPart::kParameters;
  int32_t slot = 0;
  ElementRange range = {};
};
// A ForwardPush to the other holder of its shard.
struct Copying {
  PushId id;
  ForwardTo to;
};
// A ForwardPush of a part of a contribution to the job above.
struct ContributedPart {
  Token number = 0;  // of the order
  GrantedPush push;
};
struct Transfer {
  JobId job;
  std::variant<Fetch, Copying, ContributedPart> what;
};

class JobDriver;

// State that the jobs of a server share.
struct Server {
  ServerOptions options;
  ThreadPool* pool = nullptr;
  StagingRoom room;  // at the end of the Step before
  ClusterMark mark;  // of the coordinator that it follows
  std::map<JobId, std::unique_ptr<JobDriver>> jobs;
  std::map<Token, Transfer> transfers;  // without an answer
  Token next_transfer = 1;

  JobDriver* Find(const JobId& job) const;
  Token Begin(Transfer transfer);
  template <class What>
  size_t Count() const {
    return static_cast<size_t>(std::count_if(
        transfers.begin(), transfers.end(),
        [](const auto& entry) { return std::holds_alternative<What>(entry.second.what); }));
  }
  // Parameters, state of optimizers and staged pushes of all jobs.
  int64_t HeldBytes() const;
  // OK if there is so much besides; `what` needs it.
  absl::Status CheckFree(int64_t needed, absl::string_view what) const;
};

class JobDriver {
 public:
  static constexpr int64_t kPartElements = int64_t{4} << 20;  // of a FetchPart
  static constexpr size_t kFetchesAtOnce = 4;                 // of all jobs
  static constexpr size_t kForwardsAtOnce = 4;
  static constexpr Duration kSnapshotRetry = std::chrono::seconds(10);  // after a failed one

  // Creates a driver; of nothing, if `recovered` has only a name. `server` outlives it.
  JobDriver(Server* server, RecoveredJob recovered);

  const JobState& state() const { return *state_; }
  Version snapshot_version() const { return snapshot_version_; }
  HeldJob Describe() const;

  void On(const PushArrived& event, Turn& turn);
  void On(const PullArrived& event, Turn& turn) const;
  void On(const LogSynced& event, Turn& turn);
  void On(const LogFailed& event, Turn& turn);
  void On(const SnapshotDone& event, Turn& turn);
  void OnTransferred(const Fetch& fetch, const PartFetched& event, Turn& turn);
  void OnTransferred(const Copying& copying, const PushForwarded& event, Turn& turn);
  void OnTransferred(const ContributedPart& part, const PushForwarded& event, Turn& turn);
  // There is room among kFetchesAtOnce again.
  void GoOnFetching(Turn& turn);

  void Execute(const AssignShards& message, Turn& turn);
  void Execute(const FenceIslands& message, Turn& turn);
  void Execute(const CollectStatistics& message, Turn& turn);
  void Execute(const CommitRound& message, Turn& turn);
  void Execute(const DropContributions& message, Turn& turn);
  void Execute(const EndJob& message, Turn& turn);
  void Execute(const DescribeJob& message, Turn& turn) const;
  void Execute(const ReceiveShards& message, Turn& turn);
  void Execute(const FetchBase& message, Turn& turn);
  void Execute(const PushContribution& message, Turn& turn);
  // Returns whether ReceiveShards is older than what the job has come to.
  bool IsLate(const ReceiveShards& message) const;
  // OK: it can be executed. `job`: its driver, null where there is none yet.
  static absl::Status Check(const ReceiveShards& message, const JobDriver* job,
                            const Server& server);

  // The job goes from here.
  void RefusePending(Turn& turn);

  // Arithmetic, a part at a time, so that heartbeats and pushes do not wait for a whole round.
  bool HasWork() const { return applying_ || gathering_.has_value(); }
  void Work(Turn& turn);

  void OnHello(Turn& turn);
  // Publishes how the job's ledger has changed, at the end of a Step.
  void PublishLedger(Turn& turn);
  void DoDue(Turn& turn);
  Instant NextDeadline(bool connected) const;

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
    size_t running = 0;  // in flight
    Retry retry;
  };

  const JobId& id() const { return state_->job(); }
  LogSequence Append(LogRecord record, Turn& turn);
  // Appends and applies it. REQUIRES: state_->Check(record).
  LogSequence Take(const LogRecord& record, Turn& turn);
  void Acknowledge(const std::vector<Token>& tokens, PushStatus status, const std::string& reason,
                   Turn& turn);
  void Announce(const PushId& push, Turn& turn);
  void Known(const std::vector<ContributionId>& contributions);
  void TakeFill(const PushArrived& event, Turn& turn);
  bool IsLogLong();
  void MaybeSnapshot(Turn& turn);
  void End(Turn& turn);
  void FinishCommit(Turn& turn);

  bool Receives() const;
  void Receive(Turn& turn);
  bool IsFetched(const Fetch& fetch) const;
  // Fetches what `gaps` lack, in parts, as far as kFetchesAtOnce allows.
  void FetchGaps(Fetch fetch, const std::vector<ElementRange>& gaps, const JobId& from_job,
                 const ShardSource& source, Turn& turn);
  void FetchMissing(const ShardSource& source, Turn& turn);

  void FetchBaseParts(Turn& turn);
  void RetryBase(const std::string& why, Turn& turn);
  void TakeBase(const Fetch& fetch, const PartFetched& event, Turn& turn);
  GrantedPush NextPart();
  void PushContributionParts(Turn& turn);

  void SetForwards(const AssignShards& message, Turn& turn);
  void ForwardStaged(Turn& turn);

  Server* const server_;
  bool is_published_;  // the ledger, of which changes follow
  const std::unique_ptr<JobState> state_;
  std::string log_full_;         // not empty: why its log or snapshot cannot be written now
  Instant next_fault_ = kNever;  // when that is reported again

  LogSequence next_sequence_ = 1;
  LogSequence synced_ = 0;
  std::map<LogSequence, Pending> pending_;
  std::map<PushId, Announced> announced_;
  Instant next_announcement_ = kNever;  // not after the first of `announced_`

  std::optional<ReceiveShards> receiving_;           // the newest that makes sense now
  size_t received_ = 0;                              // its shards that were reported
  std::map<LogSequence, std::vector<Token>> fills_;  // requests that wait for these records
  Retry receive_retry_;

  std::map<ShardId, ForwardTo> forwards_;  // other holders of shards that islands push here
  std::set<PushId> to_forward_;            // durable here; round-robin, from the one after
  PushId forwarded_last_;                  // this one on
  Retry forward_retry_;

  std::optional<FetchBase> fetching_;  // until it is answered
  Retry base_retry_;
  std::optional<Contributing> contributing_;

  std::optional<CommittedRecord> committing_;  // in the log, not yet durable
  LogSequence committing_sequence_ = 0;
  bool end_after_commit_ = false;
  bool applying_ = false;                 // it is durable, and some shards are stepped
  std::optional<Statistics> statistics_;  // the last ones, for repeated requests
  std::optional<Gathering> gathering_;    // those that are being made

  std::shared_ptr<const Snapshot> snapshot_running_;
  Instant next_snapshot_try_{};
  Version snapshot_version_ = kNoVersion;
  LogSequence snapshot_replay_from_ = 1;
  bool snapshot_ended_ = false;  // the newest snapshot is the last

  // Bytes of pushes in the log since the newest snapshot was taken, those of a restart's replay
  // left out; and of these, those before the snapshot that is being written.
  int64_t log_bytes_ = 0, snapshot_log_bytes_ = 0;
  // When `measured_version_` was made: `log_bytes_`, and what its round added.
  Version measured_version_ = kNoVersion;
  int64_t measured_bytes_ = 0, round_bytes_ = 0;
};

}  // namespace atl::ps

#endif  // ATOLL_PARAMSERVER_CORE_JOB_DRIVER_H_
