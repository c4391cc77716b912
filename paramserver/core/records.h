// Durable data of a parameter server: log records, and snapshots of a job. Plain structs;
// paramserver/storage turns them into bytes and back by records.proto, which has those without
// payloads.
//
// Each job has a log of its own, so that damage or a full disk in one job leaves the others alone.
// Records are numbered 1, 2, ... A job's state is its newest good snapshot, with the records after
// it applied in order (job_state.h): the same code that runs when they are written.

#ifndef ATOLL_PARAMSERVER_CORE_RECORDS_H_
#define ATOLL_PARAMSERVER_CORE_RECORDS_H_

#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "common/ids.h"
#include "common/protocol/control.h"
#include "paramserver/core/records.plain.h"
#include "paramserver/core/tensor.h"

namespace atl::ps {

// Number of a record in its job's log; the first is 1.
using LogSequence = uint64_t;

struct PushedRecord {
  PushId id;
  Encoding encoding = Encoding::kFloat32;
  SharedBytes payload;
};
// The kind of what has arrived of a shard, to be assigned later.
struct ReceivedRecord {
  OwnedShard shard;
  int64_t placement = 0;  // of the request: chunks of another placement may differ
  Version version = 0;    // kAdopted: of the job above
  ReceivedPart part = ReceivedPart::kParameters;
  int32_t slot = 0;     // kSlot: which, from 0
  int64_t begin = 0;    // first element
  SharedBytes payload;  // fp32
};

using LogRecord = std::variant<AssignedRecord, FencedRecord, PushedRecord, CommittedRecord,
                               DroppedRecord, EndedRecord, JoinedRecord, ReceivedRecord>;

// The number of an island's decided contributions that are known exactly.
inline constexpr int kDecidedKept = 32;

// How far the job of a site's servers is in its exchange with the job above (RoundStep).
struct SiteExchange {
  Version base = kNoVersion;            // of the job above, newest adopted
  Version based_at = kNoVersion;        // own version that adopted it
  Version contributed_at = kNoVersion;  // own version that made the newest contribution

  // That contribution is of changes to `base`.
  bool contributes() const { return contributed_at != kNoVersion && contributed_at >= based_at; }
  bool operator==(const SiteExchange&) const = default;
};

struct ShardSnapshot {
  OwnedShard shard;
  std::shared_ptr<const TensorLease> theta;  // null in version kNoVersion
  // Slots as ListServerSlots; empty without theta. Of an ended job its moving average alone.
  std::vector<std::shared_ptr<const TensorLease>> slots = {};
};

// Everything of a job at one point of its log, but for the bytes of staged pushes and of what has
// arrived and is not in use yet: those stay in the log. Immutable; it may be read on any thread.
struct Snapshot {
  JobId job;
  Version version = kNoVersion;
  LogSequence last_sequence = 0;  // of the newest record that it contains
  // The log must be kept from here on for this snapshot to be of use: the oldest staged push or
  // arrived part, or last_sequence + 1.
  LogSequence replay_from = 1;
  int64_t epoch = 0;
  bool ended = false;
  AssignShards assignment;
  CommittedRecord newest;  // that made `version`
  std::vector<IslandFence> fences;
  std::vector<IslandDecisions> decided;  // by island
  std::vector<PushId> staged;
  std::vector<ShardSnapshot> shards;    // by shard id
  std::vector<std::string> slots = {};  // names of every shard's
  SiteExchange exchange = {};
};

// The head of a file: the snapshot without its tensors, and their checksums.
struct SnapshotHead {
  Snapshot snapshot;
  std::vector<uint64_t> checksums;
};

}  // namespace atl::ps

#endif  // ATOLL_PARAMSERVER_CORE_RECORDS_H_
