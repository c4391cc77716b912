// The worker's decisions: a pure state machine between the coordinator's messages, the trainer and
// the transfers. Start here; README.md tells why.
//
// A worker runs one island of one job at a time. The life of an island here:
//
//   hello -> prepare -> order -> (make and push the initial weights | pull | resume the checkpoint)
//   -> train H steps on leased sequences -> ask to push -> push when granted -> hear the outcome
//   -> pull the committed version -> adopt it -> train ...
//
// Rules:
//  * At most one contribution is in flight, from CaptureDelta until a version that decided it is
//    adopted. Meanwhile the island waits (overlap none) or trains on (overlap carry) for at most
//    kMaxCarriedRounds * H steps; what it learns there goes into the next contribution, which is
//    made H steps after the adoption: so islands that were apart in time push together again.
//  * A rejected contribution's sequences are the coordinator's to lease again. Steps made after
//    that push stay, unless the outcome says warm_up_again: then their sequences are trained again.
//  * Without a coordinator it trains until its leases are used up; it asks ahead for
//    kLeasedRoundsAhead rounds.
//  * A new generation forgets leases, contribution and local steps: they were fenced off.
//  * A local checkpoint is written only when nothing is in flight, so that whoever resumes from it
//    cannot push the same steps twice.
//  * Everything unanswered is sent again after kRetryInterval, and at once after a reconnect.
//    Messages of an older epoch, generation or sequence, and repetitions, change nothing.
//  * Whatever it waits for is said in IslandProgress::doing.
//
// Pure: no I/O, clock or threads. One thread at a time.

#ifndef ATOLL_WORKER_CORE_CORE_H_
#define ATOLL_WORKER_CORE_CORE_H_

#include <memory>
#include <string>
#include <vector>

#include "common/time.h"
#include "worker/core/actions.h"

namespace atl::worker {

inline constexpr int kLeasedRoundsAhead = 2;
inline constexpr int kMaxCarriedRounds = 3;

// Who the worker is; fixed for the process's life.
struct Identity {
  NodeId name;
  Incarnation incarnation = 0;  // larger than that of any earlier process of this name
  std::string software_version;
  std::vector<DeviceInfo> devices;
  std::vector<LocalCheckpoint> checkpoints;  // found on the disk, whole and readable
};

class WorkerCore {
 public:
  explicit WorkerCore(Identity identity);
  ~WorkerCore();
  WorkerCore(WorkerCore&&) noexcept;

  // `now` never goes back. The first event is usually Connected; Tick is always allowed.
  Actions Step(Instant now, const Event& event);

  // What the next heartbeat would say; empty when it runs no island.
  const std::string& doing() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace atl::worker

#endif  // ATOLL_WORKER_CORE_CORE_H_
