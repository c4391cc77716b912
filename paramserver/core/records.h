// What a parameter server makes durable: log records, and snapshots of a job. Plain structs;
// paramserver/storage turns them into bytes and back.
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
#include "common/protocol/outer_optimizer.h"
#include "paramserver/core/tensor.h"

namespace atl::ps {

// Number of a record in its job's log; the first is 1.
using LogSequence = uint64_t;

struct AssignedRecord {
  int64_t epoch = 0;  // of the coordinator that said so
  AssignShards assignment;
};
struct FencedRecord {
  std::vector<IslandFence> islands;
};
struct PushedRecord {
  PushId id;
  Encoding encoding = Encoding::kFloat32;
  SharedBytes payload;
};
struct CommittedRecord {
  Version version = 0;
  std::vector<RoundTerm> terms;
  std::vector<ContributionId> dropped;
  JobImage image = {};  // what the coordinator knows of the job with it; kept, not read
  RoundStep step = {};
};
struct DroppedRecord {
  std::vector<ContributionId> contributions;
};
struct EndedRecord {};
// A server without shards of the job begins at the version of `newest`, to receive some.
struct JoinedRecord {
  int64_t placement = 0;
  CommittedRecord newest;
  std::vector<ContributionId> decided;
  int32_t slots = 1;  // of the outer optimizer
};
// What of a shard has arrived, to be assigned later. kFill: parameters from an island; every slot
// is zero. Slots after the first have the numbers after kFill (PartOfSlot). kAdopted: parameters of
// the job above (FetchBase), of a shard that is held, for a round to adopt.
enum class ReceivedPart : uint8_t {
  kParameters = 0,
  kFirstSlot = 1,
  kFill = 2,
  kAdopted = kMaxOuterSlots + 2
};
inline constexpr ReceivedPart kLastPart = ReceivedPart::kAdopted;

// Slots count from 0.
inline ReceivedPart PartOfSlot(size_t slot) {
  return static_cast<ReceivedPart>(slot == 0 ? 1 : slot + 2);
}
// Of a part that is none of kParameters, kFill and kAdopted.
inline size_t SlotOfPart(ReceivedPart part) {
  const auto number = static_cast<size_t>(part);
  return number == 1 ? 0 : number - 2;
}
struct ReceivedRecord {
  OwnedShard shard;
  int64_t placement = 0;  // of the request: chunks of another placement may differ
  Version version = 0;    // kAdopted: of the job above
  ReceivedPart part = ReceivedPart::kParameters;
  int64_t begin = 0;    // first element
  SharedBytes payload;  // fp32
};

using LogRecord = std::variant<AssignedRecord, FencedRecord, PushedRecord, CommittedRecord,
                               DroppedRecord, EndedRecord, JoinedRecord, ReceivedRecord>;

// Contributions of one island whose fate is decided: applied or dropped. Exact for the newest ones;
// everything up to `forgotten` (in the order of ContributionId) is decided too.
struct IslandDecisions {
  ContributionId forgotten;
  bool any_forgotten = false;
  std::vector<ContributionId> newest;  // oldest first, at most kDecidedKept
};
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
  // Of the outer optimizer; empty without theta, and when the job has ended.
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
  CommittedRecord newest = {kNoVersion, {}, {}};  // that made `version`
  std::vector<IslandFence> fences;
  std::vector<IslandDecisions> decided;  // by island
  std::vector<PushId> staged;
  std::vector<ShardSnapshot> shards;    // by shard id
  std::vector<std::string> slots = {};  // names of every shard's
  SiteExchange exchange = {};
};

}  // namespace atl::ps

#endif  // ATOLL_PARAMSERVER_CORE_RECORDS_H_
