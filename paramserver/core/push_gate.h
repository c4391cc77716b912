// Which pushes are taken. Each job's state has a ledger. The gate is a copy of all ledgers, made of
// what the core publishes (Actions::gate): the tensor link looks at it before it takes memory for a
// push. Fencing: a push of an older generation or incarnation is refused. Backpressure: a push
// without room for its bytes is refused. Pure.

#ifndef ATOLL_PARAMSERVER_CORE_PUSH_GATE_H_
#define ATOLL_PARAMSERVER_CORE_PUSH_GATE_H_

#include <map>
#include <set>
#include <string>
#include <variant>
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

// ---- Changes of a ledger ----

struct HeldShards {
  std::vector<OwnedShard> shards;
};
// Pushes of these shards from theta_base of this version are taken (their elements by shard).
struct ExpectedFills {
  Version base = kNoVersion;
  std::map<ShardId, int64_t> elements;
};
// New pushes are refused with this reason.
struct ClosedLedger {
  std::string reason;
};
struct NotedPush {
  PushId id;
  bool durable = false;
};
// ContributionId: it is decided: its pushes are staged no longer, and duplicates of them are
// recognised from now on. FencedRecord: fences only rise.
using LedgerChange =
    std::variant<HeldShards, FencedRecord, ExpectedFills, ClosedLedger, NotedPush, ContributionId>;

// The rules of one job.
class PushLedger {
 public:
  explicit PushLedger(JobId job) : job_(std::move(job)) {}

  // Decides what to do with a push that brings so many elements. One whose elements are all staged
  // durably by others of its contribution is a duplicate.
  Verdict Judge(const PushId& id, int64_t elements) const;

  void Apply(const LedgerChange& change);

  bool IsDecided(const ContributionId& contribution) const;
  // For snapshots; by island.
  std::vector<IslandFence> Fences() const;
  std::vector<IslandDecisions> Decided() const;
  void Restore(const std::vector<IslandFence>& fences, const std::vector<IslandDecisions>& decided);

 private:
  void On(const HeldShards& change);
  void On(const FencedRecord& change);
  void On(const ExpectedFills& change) { fills_ = change; }
  void On(const ClosedLedger& change) { closed_ = change.reason; }
  void On(const NotedPush& change);
  void On(const ContributionId& decided);
  bool IsStaged(const PushId& id, int64_t shard_elements) const;
  Verdict JudgeFill(const PushId& id, int64_t elements) const;

  JobId job_;
  std::map<ShardId, int64_t> elements_;
  std::map<IslandId, IslandFence> fences_;
  std::map<IslandId, IslandDecisions> decided_;
  std::map<PushId, bool> staged_;  // true: durable
  ExpectedFills fills_;
  std::string closed_;
};

// Why a push of this job is refused.
std::string NotAssigned(const JobId& job);

// How many bytes are staged, and how many may be.
struct StagingRoom {
  int64_t bytes = 0;
  int64_t bytes_max = 0;

  // OK if so many more can be staged now.
  absl::Status Check(int64_t more) const;
};

// The ledger of a job that is served from now on, a change of it, or: the job is removed.
struct GateChange {
  JobId job;
  std::variant<std::monostate, PushLedger, LedgerChange> what;
};

class PushGate {
 public:
  void Apply(std::vector<GateChange> changes, const StagingRoom& room);

  // OK: take it. AlreadyExists: a duplicate, durable. Any other error: refused, and why.
  // The room is not reserved by this: the core checks again when the bytes are here.
  absl::Status Admit(const PushId& id, Encoding encoding, int64_t elements) const;

 private:
  std::map<JobId, PushLedger> ledgers_;
  StagingRoom room_;
};

}  // namespace atl::ps

#endif  // ATOLL_PARAMSERVER_CORE_PUSH_GATE_H_
