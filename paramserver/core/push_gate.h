// Which pushes are taken: decided by one class for the core and for the tensor link's network
// thread, which calls it before it takes memory for a push. Fencing: a push of an older generation
// or incarnation is refused. Backpressure: a push without room for its bytes is refused.

#ifndef ATOLL_PARAMSERVER_CORE_PUSH_GATE_H_
#define ATOLL_PARAMSERVER_CORE_PUSH_GATE_H_

#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/ids.h"
#include "common/protocol/control.h"
#include "paramserver/core/records.h"

namespace atl::ps {

struct Verdict {
  enum Kind {
    kTake,       // new, and it fits
    kPending,    // staged, but its record is not durable yet: acknowledged when it is
    kDuplicate,  // durably staged, or decided: acknowledge, change nothing
    kRefuse,     // reason says why
  };
  Kind kind = kTake;
  std::string reason;
};

// The rules of one job. Thread-safe.
class PushLedger {
 public:
  PushLedger(JobId job, std::span<const OwnedShard> shards);

  // Decides what to do with a push that brings so many elements. One whose elements are all staged
  // durably by others of its contribution is a duplicate.
  Verdict Judge(const PushId& id, int64_t elements) const;

  void SetShards(std::span<const OwnedShard> shards);
  // Fences only rise.
  void Fence(std::span<const IslandFence> fences);
  // Pushes of these shards from theta_base of this version are taken (their elements by shard).
  void ExpectFills(Version base, std::map<ShardId, int64_t> elements);
  // New pushes are refused with this reason; empty: taken again.
  void Close(std::string reason);

  // REQUIRES: not known yet.
  void AddPending(const PushId& id);
  void MarkDurable(const PushId& id);  // no effect if the push is not known any more
  // Its pushes are staged no longer, and duplicates of them are recognised from now on.
  void Decide(const ContributionId& contribution);
  bool IsDecided(const ContributionId& contribution) const;

  // For snapshots; by island.
  std::vector<IslandFence> Fences() const;
  std::vector<IslandDecisions> Decided() const;
  void Restore(std::span<const IslandFence> fences, std::span<const IslandDecisions> decided);

 private:
  bool IsDecidedLocked(const ContributionId& contribution) const;
  bool IsStagedLocked(const PushId& id, int64_t shard_elements) const;
  Verdict JudgeFillLocked(const PushId& id, int64_t elements) const;

  const JobId job_;
  mutable std::mutex mutex_;  // guards all below
  std::map<ShardId, int64_t> elements_;
  std::map<IslandId, IslandFence> fences_;
  std::map<IslandId, IslandDecisions> decided_;
  std::map<PushId, bool> staged_;  // true: durable
  Version fill_base_ = kNoVersion;
  std::map<ShardId, int64_t> fills_;
  std::string closed_;
};

// Why a push of this job is refused.
std::string NotAssigned(const JobId& job);

// All jobs' ledgers and the room for staged bytes. Thread-safe.
class PushGate {
 public:
  // OK: take it. AlreadyExists: a duplicate, durable. Any other error: refused, and why.
  // The room is not reserved by this: the core checks again when the bytes are here.
  absl::Status Admit(const PushId& id, Encoding encoding, int64_t elements) const;

  // OK if so many more bytes can be staged now.
  absl::Status CheckRoom(int64_t bytes) const;

  // The core's: ledgers by job, and how many bytes are staged and may be.
  void SetLedger(const JobId& job, std::shared_ptr<const PushLedger> ledger);
  void RemoveLedger(const JobId& job);
  void SetRoom(int64_t staged_bytes, int64_t staged_bytes_max);

 private:
  absl::Status RoomLocked(int64_t bytes) const;

  mutable std::mutex mutex_;  // guards all below
  std::map<JobId, std::shared_ptr<const PushLedger>> ledgers_;
  int64_t staged_bytes_ = 0;
  int64_t staged_bytes_max_ = 0;
};

}  // namespace atl::ps

#endif  // ATOLL_PARAMSERVER_CORE_PUSH_GATE_H_
