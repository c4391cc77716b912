// Events and actions of a parameter server's core (core.h).

#ifndef ATOLL_PARAMSERVER_CORE_EVENTS_H_
#define ATOLL_PARAMSERVER_CORE_EVENTS_H_

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "common/element_ranges.h"
#include "common/ids.h"
#include "common/net/tensor/tensor_types.h"
#include "common/protocol/control.h"
#include "common/time.h"
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
  std::vector<GateChange> gate;  // PushGate::Apply, with `room`
  StagingRoom room;
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
  std::optional<std::vector<RelayPlace>> relays;  // be reached through these, and no others
  std::optional<ClusterMark> remember;            // make it durable before anything is sent
  std::vector<std::string> notes;                 // for the human-readable log, one line each
  std::optional<std::string> stop;  // the coordinator will never serve this daemon: why
  Instant next_deadline = kNever;   // send a Tick then, if nothing happens before
};

}  // namespace atl::ps

#endif  // ATOLL_PARAMSERVER_CORE_EVENTS_H_
